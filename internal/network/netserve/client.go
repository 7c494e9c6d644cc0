package netserve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/inherit"
	"berth/internal/sys/lock"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
)

// Places are the process's files. One process belongs to them.
type Places struct {
	Socket string `json:"socket"`
	Lock   string `json:"lock"` // held while the process is started or asked to change something
	Log    string `json:"log"`
}

// client is a connection to the process.
type client struct{ *net.UnixConn }

// answerWait is how long the process may take to answer; it takes about a millisecond.
const answerWait = 10 * time.Second

// errGone says that no process serves.
var errGone = errors.New("no process serves names")

// dial connects to the process; errGone if there is none.
func (p Places) dial() (*client, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: p.Socket, Net: "unixpacket"})
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, errGone
	}
	if err != nil {
		return nil, fmt.Errorf("reach the process that serves names: %w", err)
	}
	return &client{c}, nil
}

func (c *client) ask(q request, files ...*os.File) (r reply, err error) {
	_ = c.SetDeadline(time.Now().Add(answerWait))
	if err = send(c.UnixConn, q, files...); err == nil {
		_, err = receive(c.UnixConn, &r)
	}
	switch {
	case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed):
		return r, errGone // it ended meanwhile
	case err != nil:
		return r, fmt.Errorf("ask the process that serves names: %w", err)
	case r.Err != "":
		return r, errors.New("the process that serves names: " + r.Err)
	}
	return r, nil
}

// locked calls f with a connection to the process, while no other command starts it or changes something. If there is no
// process, locked starts it; unless start is false: then f is not called.
func (p Places) locked(ctx context.Context, start bool, f func(*client) error) error {
	if err := os.MkdirAll(filepath.Dir(p.Lock), 0o755); err != nil {
		return err
	}
	held, err := lock.Open(ctx, p.Lock)
	if err != nil {
		return err
	}
	defer lock.Release(held)
	for range 3 { // it may end just now
		c, err := p.dial()
		if errors.Is(err, errGone) {
			if !start {
				return nil
			}
			if err := p.start(); err != nil {
				return fmt.Errorf("start the process that serves names: %w", err)
			}
			fault.Point("netserve started")
			c, err = p.dial()
		}
		if err != nil {
			return err
		}
		err = f(c)
		c.Close()
		if !errors.Is(err, errGone) {
			return err
		}
	}
	return fmt.Errorf("%w: it ends as soon as it is started; see %s", errGone, p.Log)
}

// start starts the process. The socket takes connections from then on.
func (p Places) start() error {
	if err := inherit.Free(); err != nil {
		return err
	}
	if err := os.Remove(p.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: p.Socket, Net: "unixpacket"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(p.Socket, 0o600); err != nil {
		return err
	}
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close()
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(fork.Berth(), "netserve", p.Socket) // the path of the socket tells in ps to which root the process belongs
	cmd.Args[0], cmd.Dir = "berth", "/"
	cmd.Env = []string{"GOTRACEBACK=none"}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{f} // descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = thread.Own(func() error { // a process starts with its starter's no_new_privs
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		return fork.Start(cmd)
	})
	if err == nil {
		go fork.Wait(cmd) //nolint:errcheck // it outlives this command; waiting only spares a zombie
	}
	return err
}

// Set begins to serve a node, or replaces its entry.
func (p Places) Set(ctx context.Context, e *Entry) error {
	return p.locked(ctx, true, func(c *client) error { return c.set(e) })
}

func (c *client) set(e *Entry) error {
	needs, err := e.sockets(index)
	if err != nil {
		return err
	}
	byKey := map[string]socket{}
	var keys []string
	for _, n := range needs {
		byKey[n.key()] = n
		keys = append(keys, n.key())
	}
	r, err := c.ask(request{Do: doLacks, Keys: keys})
	if err != nil {
		return err
	}
	var files []*os.File
	defer func() { closeAll(files) }()
	for _, key := range r.Keys {
		f, err := byKey[key].open()
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	fault.Point("netserve's sockets opened")
	beside := r.Keys
	for left := files; ; {
		n := min(len(left), maxFiles)
		q := request{Do: doSockets, Keys: beside[:n]}
		if n == len(left) {
			q.Do, q.Entry, q.Needs = doSet, e, needs
		}
		if _, err := c.ask(q, left[:n]...); err != nil || q.Do == doSet {
			return err
		}
		left, beside = left[n:], beside[n:]
	}
}

// Drop ends the service for a node. If it was the last one, Drop waits until the process has ended.
func (p Places) Drop(ctx context.Context, node string) error {
	err := p.locked(ctx, false, func(c *client) error {
		id, err := c.process()
		if err != nil {
			return nil // it has ended
		}
		pidfd, err := id.Open()
		if err != nil {
			return nil // it has ended
		}
		defer pidfd.Close()
		r, err := c.ask(request{Do: doDrop, Node: node})
		if errors.Is(err, errGone) {
			return nil
		}
		if err != nil || !r.Last {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, answerWait)
		defer cancel()
		return proc.Wait(ctx, pidfd)
	})
	if err != nil {
		return err
	}
	return p.clean(ctx)
}

// clean removes the socket of a process that has ended.
func (p Places) clean(ctx context.Context) error {
	held, err := lock.Open(ctx, p.Lock)
	if err != nil {
		return err
	}
	defer lock.Release(held)
	c, err := p.dial()
	if err == nil {
		c.Close()
		return nil
	}
	if !errors.Is(err, errGone) {
		return err
	}
	if err := os.Remove(p.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// process returns the process's identity.
func (c *client) process() (proc.ID, error) {
	r, err := c.ask(request{Do: doLacks})
	if err != nil {
		return proc.ID{}, err
	}
	return proc.Of(r.PID)
}

// index returns the index of a bridge's link.
func index(b Bridge) (int, error) {
	h, err := netif.Hub(b.Netns).Open()
	if err != nil {
		return 0, err
	}
	defer h.Close()
	l, err := h.LinkByName(b.Name)
	if err != nil {
		return 0, fmt.Errorf("find bridge %s: %w", b.Name, err)
	}
	return l.Attrs().Index, nil
}

// open opens the socket, in the network namespace where it belongs.
func (s socket) open() (f *os.File, err error) {
	if s.netns == "" {
		return s.openHere()
	}
	ns, err := os.Open(s.netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	err = thread.Own(func() (err error) {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		f, err = s.openHere()
		return err
	})
	return f, err
}

func (s socket) openHere() (*os.File, error) {
	kind := unix.SOCK_STREAM
	if s.Proto == "udp" {
		kind = unix.SOCK_DGRAM
	}
	family, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(s.At.Port()), Addr: s.At.Addr().As16(), ZoneId: s.zone()})
	if s.At.Addr().Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Port: int(s.At.Port()), Addr: s.At.Addr().As4()}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	err = s.bind(fd, family, at)
	if err == nil && s.Proto == "tcp" {
		err = unix.Listen(fd, 512)
	}
	if errors.Is(err, unix.EADDRINUSE) {
		err = refuse.Busyf("port %d (%s) of the host's %s is in use by another program: publish another port, or end that program", s.At.Port(), s.Proto, s.At.Addr())
	} else if err != nil {
		err = fmt.Errorf("listen at %s (%s): %w", s.At, s.Proto, err)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (s socket) bind(fd, family int, at unix.Sockaddr) error {
	if s.Proto == "tcp" { // connections of an earlier process may linger
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return err
		}
	}
	if s.Bridge != "" { // what comes from elsewhere for this address is not for this socket
		if err := unix.BindToDevice(fd, s.Bridge); err != nil {
			return err
		}
	}
	if err := freeBind(fd, family); err != nil {
		return err
	}
	return unix.Bind(fd, at)
}

// freeBind lets the socket have an address that is not there yet: an IPv6 address is checked first (RFC 4862), and the
// loopback may be down.
func freeBind(fd, family int) error {
	if family == unix.AF_INET {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
}

// zone is the index of the link that a link-local address belongs to.
func (s socket) zone() uint32 {
	if s.At.Addr().Is6() && s.At.Addr().IsLinkLocalUnicast() {
		return uint32(s.Index)
	}
	return 0
}
