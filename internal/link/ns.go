package link

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
)

// NS says where to find a node's network namespace: at Pin if a namespace is pinned there, else by the pid in PIDFile.
type NS struct {
	Pin     string `json:"pin"`
	PIDFile string `json:"pid_file"`
}

// self is the network namespace of the calling thread, which is the host's.
const self = "/proc/thread-self/ns/net"

// Open opens the namespace. The error wraps fs.ErrNotExist if the namespace is not pinned and no process has that pid.
// Open refuses the host's own namespace: a node's steps must not configure it.
func (n NS) Open() (*os.File, error) {
	f, err := n.open()
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	ours, err := os.Stat(self)
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
	if isPin(n.Pin) {
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

// isPin reports whether a namespace is mounted on path. A plain file is a pin that was not made or was undone.
func isPin(path string) bool {
	var s unix.Statfs_t
	return path != "" && unix.Statfs(path, &s) == nil && s.Type == unix.NSFS_MAGIC
}

// inode identifies a namespace while it exists (nsfs inode numbers are unique among existing namespaces).
func inode(ns *os.File) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &s); err != nil {
		return 0, fmt.Errorf("stat %s: %w", ns.Name(), err)
	}
	return s.Ino, nil
}

// Inside is the common part of steps that act in a node's namespace: the namespace and the interface.
type Inside struct {
	NS    NS     `json:"ns"`
	Inode uint64 `json:"netns_inode,omitempty"` // of the namespace that the step was done in
	If    string `json:"ifname"`                // name inside
}

// Prepare records the namespace, so that Undo never acts in another one that has got the same pid since.
func (i *Inside) Prepare(context.Context) error {
	f, err := i.NS.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	i.Inode, err = inode(f)
	return err
}

// enter opens the namespace and a netlink socket in it. The error wraps fs.ErrNotExist if the namespace does not exist
// or is not the one that Prepare recorded.
func (i *Inside) enter() (*room, error) {
	f, err := i.NS.Open()
	if err != nil {
		return nil, err
	}
	ino, err := inode(f)
	if err == nil && i.Inode != 0 && ino != i.Inode {
		err = fmt.Errorf("network namespace %d is gone: %w", i.Inode, fs.ErrNotExist)
	}
	var h *netlink.Handle
	if err == nil {
		h, err = at(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &room{Handle: h, ns: f}, nil
}

// link finds the interface inside.
func (i *Inside) link(r *room) (netlink.Link, error) {
	l, err := r.LinkByName(i.If)
	if err != nil {
		return nil, fmt.Errorf("find %s in the node: %w", i.If, err)
	}
	return l, nil
}

// room is an open namespace with a netlink socket in it.
type room struct {
	*netlink.Handle
	ns *os.File
}

func (r *room) Close() {
	r.Handle.Close()
	r.ns.Close()
}

// gone reports whether err says that the namespace does not exist.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }
