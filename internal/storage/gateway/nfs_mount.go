package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/storage/mounts"
	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
)

// How long a file server may take.
const (
	connectWait = 5 * time.Second  // to take a connection
	mountWait   = 30 * time.Second // to all of a mount
	flushWait   = 8 * time.Second  // for the data that the node wrote last, when it stops
	againWait   = 3 * time.Second  // the same, if the server did not answer a moment ago
	forceWait   = 5 * time.Second  // for the kernel, once its requests are given up
)

// nfsMount is a mount in a hold, as its steps journal it.
type nfsMount struct {
	Hold    mounts.Hold `json:"hold"`
	NS      netif.NS    `json:"ns,omitzero"` // the node's network namespace; zero: the host's
	Client  string      `json:"client,omitempty"`
	Source  string      `json:"source"`
	Server  netip.Addr  `json:"server,omitzero"`
	Port    int         `json:"port"`
	Options string      `json:"options"`
	// Older allows NFS 4.1 in place of the 4.2 of Options: the spec asks for no version.
	Older bool `json:"older,omitempty"`
	// ReadOnly makes the file system itself read-only: a node's root that may mount could change a read-only mount back.
	ReadOnly bool `json:"read_only,omitempty"`

	cut bool // the server's requests were given up already
}

// mount makes the hold with the mount.
func (n *nfsMount) mount(ctx context.Context) error {
	if n.Hold.Made() {
		return nil
	}
	if err := n.Hold.Drop(); err != nil { // the mount that a killed command left
		return err
	}
	var ns *os.File
	if n.Client != "" {
		var err error
		if ns, err = n.NS.Open(); err != nil {
			return err
		}
		defer ns.Close()
		// The file with the client's identifier comes with the module. Without one the kernel has its client built in.
		_ = fork.Run(exec.CommandContext(ctx, "modprobe", "-q", "nfsv4"))
	}
	limited, stop := context.WithTimeout(ctx, mountWait)
	defer stop()
	err := n.Hold.Make(limited, func(at string) error {
		if ns != nil {
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter the node's network namespace: %w", err)
			}
			if err := identify(at, n.Client, ns); err != nil {
				return err
			}
		}
		server, err := n.reach(ctx)
		if err != nil {
			return err
		}
		options, err := n.version(server)
		server.Close()
		if err != nil {
			return err
		}
		fault.Point("nfs server reached")
		options += ",addr=" + n.Server.String()
		flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
		if n.ReadOnly {
			flags |= unix.MS_RDONLY
		}
		if err := unix.Mount(n.Source, at, "nfs", flags, options); err != nil {
			return nfsRefused(n, err)
		}
		return nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("mount %s: file server %s takes connections and does not answer: gave up after %s: %w", n.Source, n.Server, mountWait, err)
	}
	if err != nil {
		return errors.Join(err, n.Hold.Drop())
	}
	return nil
}

// reach opens a connection to the server. The kernel would try for minutes, and its error says less.
func (n *nfsMount) reach(ctx context.Context) (*os.File, error) {
	fd, err := unix.Socket(map[bool]int{true: unix.AF_INET, false: unix.AF_INET6}[n.Server.Is4()], unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	// The socket stays in this thread's network namespace, whichever thread waits for it.
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: n.Port, Addr: [4]byte(n.Server.AsSlice())}
	if n.Server.Is6() {
		to = &unix.SockaddrInet6{Port: n.Port, Addr: n.Server.As16()}
	}
	err = unix.Connect(fd, to)
	if errors.Is(err, unix.EINPROGRESS) {
		err = connected(ctx, fd)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("reach file server %s for %s: %w", net.JoinHostPort(n.Server.String(), fmt.Sprint(n.Port)), n.Source, err)
	}
	return os.NewFile(uintptr(fd), "the file server"), nil
}

func connected(ctx context.Context, fd int) error {
	for until := time.Now().Add(connectWait); time.Now().Before(until); {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if k, err := unix.Poll(p, 100); k == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		return err
	}
	return unix.ETIMEDOUT
}

// identify gives the NFS client of this thread's network namespace a name of its own. Clients are told apart by it: with the
// host's name alone, each node's client would make the server forget what the others have open and locked.
// at is an empty folder in this thread's mount namespace.
func identify(at, client string, ns *os.File) error {
	mac, err := firstMAC(ns)
	if err != nil {
		return err
	}
	if err := unix.Mount("sysfs", at, "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount sysfs of the node's network namespace: %w", err)
	}
	err = os.WriteFile(at+"/fs/nfs/net/nfs_client/identifier", []byte("berth-"+client+"-"+mac), 0)
	if uerr := unix.Unmount(at, unix.MNT_DETACH); err == nil {
		err = uerr
	}
	if err != nil {
		return fmt.Errorf("name the NFS client of the node: %w", err)
	}
	return nil
}

// firstMAC returns the MAC of the first interface of a network namespace.
func firstMAC(ns *os.File) (string, error) {
	h, err := netif.At(ns)
	if err != nil {
		return "", err
	}
	defer h.Close()
	links, err := netif.List(h)
	if err != nil {
		return "", err
	}
	for _, l := range links {
		if mac := netif.MAC(l); !mac.IsZero() {
			return strings.ReplaceAll(mac.String(), ":", ""), nil
		}
	}
	return "", errors.New("name the NFS client of the node: no interface has a MAC")
}

// away are the file servers that did not answer in time when a mount of theirs was removed, by the network that it was seen from, and
// when that was. A node's other mounts of such a server are waited for less: it would take the node too long to stop.
var away sync.Map

// seen is how a server is known in away.
func (n *nfsMount) seen() string { return fmt.Sprint(n.NS, n.Server) }

// isAway reports whether the server did not answer a moment ago.
func (n *nfsMount) isAway() bool {
	at, ok := away.Load(n.seen())
	return ok && time.Since(at.(time.Time)) < mountWait
}

// unmount unmounts the file system in the hold. The node's data has some time to reach the server; then it is given up. lost
// reports that it was.
func (n *nfsMount) unmount() (lost bool, err error) {
	if !n.Hold.Made() {
		return false, n.Hold.Drop()
	}
	synced, wait := make(chan bool, 1), flushWait
	go func() {
		err := n.Hold.Sync()
		synced <- err == nil || errors.Is(err, unix.EACCES) // the server does not let this host's root look: Unmount waits instead
	}()
	switch {
	case n.cut:
		wait = 0
	case n.isAway():
		wait = againWait
	}
	select {
	case ok := <-synced:
		lost = !ok
		away.Delete(n.seen())
	case <-time.After(wait):
		lost = true
		if !n.cut { // else it was not waited for
			away.Store(n.seen(), time.Now())
		}
		for until := time.Now().Add(forceWait); time.Now().Before(until); {
			_ = n.Hold.Force()
			select {
			case <-synced:
				until = time.Time{}
			case <-time.After(500 * time.Millisecond):
			}
		}
	}
	fault.Point("nfs synced")
	// The kernel takes leave of the server, if it is there: it need not be waited for.
	gone := make(chan error, 1)
	go func() { gone <- n.Hold.Unmount() }()
	select {
	case err = <-gone:
	case <-time.After(forceWait):
	}
	fault.Point("nfs unmounted")
	return lost, errors.Join(err, n.Hold.Drop())
}
