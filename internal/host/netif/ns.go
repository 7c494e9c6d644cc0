package netif

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/thread"
)

// NS says where to find a node's network namespace: at Pin if a namespace is pinned there, else by the pid in PIDFile.
type NS struct {
	Pin     string `json:"pin"`
	PIDFile string `json:"pid_file"`
}

// Self is the network namespace of the calling thread, which is the host's.
const Self = "/proc/thread-self/ns/net"

// Open opens the namespace. The error wraps fs.ErrNotExist if the namespace is not pinned and no process has that pid.
// Open refuses the host's own namespace: a node's steps must not configure it.
func (n NS) Open() (*os.File, error) {
	f, err := n.open()
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	ours, err := os.Stat(Self)
	if err == nil {
		var theirs os.FileInfo
		if theirs, err = f.Stat(); err == nil && os.SameFile(ours, theirs) {
			err = fmt.Errorf("%s is the host's own network namespace", f.Name())
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return f, nil
}

func (n NS) open() (*os.File, error) {
	if IsPinned(n.Pin) {
		return os.Open(n.Pin)
	}
	b, err := os.ReadFile(n.PIDFile)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("read pid file %s: %w", n.PIDFile, err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if errors.Is(err, unix.ESRCH) { // the process ended meanwhile
		err = &fs.PathError{Op: "open", Path: n.PIDFile, Err: fs.ErrNotExist}
	}
	return f, err
}

// IsPinned reports whether a namespace is mounted on path. A plain file is a pin that was not made or was undone.
func IsPinned(path string) bool {
	var s unix.Statfs_t
	return path != "" && unix.Statfs(path, &s) == nil && s.Type == unix.NSFS_MAGIC
}

// pin mounts a namespace on a file, which it makes first.
func pin(ns *os.File, path, made string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	fault.Point(made)
	return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), path, "", unix.MS_BIND, "")
}

// Inode returns the number that identifies a namespace while it exists (nsfs inode numbers are unique among existing namespaces).
func Inode(ns *os.File) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &s); err != nil {
		return 0, fmt.Errorf("stat %s: %w", ns.Name(), err)
	}
	return s.Ino, nil
}

func (n NS) inode() (uint64, error) {
	f, err := n.Open()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return Inode(f)
}

// Inside is the common part of steps that act in a node's namespace: the namespace and the interface.
type Inside struct {
	NS    NS     `json:"ns"`
	Inode uint64 `json:"netns_inode,omitempty"` // of the namespace that the step was done in
	If    string `json:"ifname"`                // name inside
}

// Prepare records the namespace, so that Undo never acts in another one that has got the same pid since.
func (i *Inside) Prepare(context.Context) (err error) {
	i.Inode, err = i.NS.inode()
	return err
}

// Open opens the namespace and a netlink socket in it. The error wraps fs.ErrNotExist if the namespace does not exist
// or is not the one that Prepare recorded.
func (i *Inside) Open() (*Socket, error) {
	f, err := i.NS.Open()
	if err != nil {
		return nil, err
	}
	ino, err := Inode(f)
	if err == nil && i.Inode != 0 && ino != i.Inode {
		err = fmt.Errorf("network namespace %d is gone: %w", i.Inode, fs.ErrNotExist)
	}
	var h *netlink.Handle
	if err == nil {
		h, err = At(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Socket{Handle: h, NS: f}, nil
}

// Name returns the interface's name inside.
func (i *Inside) Name() string { return i.If }

// Link finds the interface inside.
func (i *Inside) Link(r *Socket) (netlink.Link, error) {
	l, err := r.LinkByName(i.If)
	if err != nil {
		return nil, fmt.Errorf("find %s in the node: %w", i.If, err)
	}
	return l, nil
}

// On calls f with a netlink socket in the namespace and the interface.
func (i *Inside) On(f func(r *Socket, l netlink.Link) error) error {
	r, err := i.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	l, err := i.Link(r)
	if err != nil {
		return err
	}
	return f(r, l)
}

// IfThere calls f with a netlink socket in the namespace. It is no error if the namespace is gone.
func (i *Inside) IfThere(f func(r *Socket) error) error {
	r, err := i.Open()
	if Absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	return f(r)
}

// Socket is a netlink socket in a network namespace, with the namespace, which stays open as long.
type Socket struct {
	*netlink.Handle
	NS *os.File
}

// Close closes the socket and its namespace.
func (r *Socket) Close() {
	r.Handle.Close()
	r.NS.Close()
}

// Absent reports whether err says that the namespace does not exist.
func Absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// Within runs f on a thread of its own in the network namespace ns. The thread ends with f.
func Within(ns *os.File, f func() error) error {
	return thread.Own(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}
