package netif

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/thread"
)

// Hub is the network namespace of the host-only bridge, pinned at this path. The zero value is the host's own
// namespace. The bridge and the host's ends of its nodes' interfaces are in it, so that neither the host's network
// stack nor its firewall sees their frames, and the host's list of links stays short with many nodes.
type Hub string

// Open opens a netlink socket in the namespace. The error wraps fs.ErrNotExist if the namespace does not exist.
func (u Hub) Open() (*netlink.Handle, error) {
	if u == "" {
		return Host()
	}
	f, err := u.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return At(f)
}

// File opens the namespace. The error wraps fs.ErrNotExist if it does not exist.
func (u Hub) File() (*os.File, error) {
	err := error(&fs.PathError{Op: "open", Path: string(u), Err: fs.ErrNotExist})
	if IsPinned(string(u)) {
		var f *os.File
		if f, err = os.Open(string(u)); err == nil {
			return f, nil
		}
	}
	return nil, fmt.Errorf("open the namespace of the host-only bridge: %w", err)
}

// Inode returns the inode of the namespace, which differs from that of a namespace pinned there later; 0 if there is
// none.
func (u Hub) Inode() uint64 {
	f, err := u.File()
	if err != nil {
		return 0
	}
	defer f.Close()
	n, _ := Inode(f)
	return n
}

// create makes the namespace unless it exists. The caller holds the host-wide lock.
func (u Hub) create() error {
	path := string(u)
	if IsPinned(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the namespace of the host-only bridge: %w", err)
	}
	var ns *os.File
	err := thread.Own(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err = os.Open(Self)
		return err
	})
	if err == nil {
		defer ns.Close()
		err = pin(ns, path, "hub's file made")
	}
	if err != nil {
		return fmt.Errorf("make the namespace of the host-only bridge at %s: %w", path, err)
	}
	fault.Point("hub made")
	return nil
}

// Remove removes the namespace with its bridges, unless a node's interface is in it. The caller holds the host-wide
// lock.
func (u Hub) Remove() error {
	path := string(u)
	for IsPinned(path) {
		used, err := u.used()
		if err != nil || used {
			return err
		}
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
		fault.Point("hub unmounted")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the namespace of the host-only bridge: %w", err)
	}
	return nil
}

// used reports whether the namespace holds a node's link. It stops at the first one, so that the end of a node does not
// take longer with many nodes. It goes by the name prefix: some kernel modules add tunnels of their own to each
// namespace.
func (u Hub) used() (bool, error) {
	used := false
	err := u.Each(func(l Brief) bool {
		used = strings.HasPrefix(l.Name, PortPrefix)
		return !used
	})
	return used, err
}

// Ensure makes the namespace unless it exists, and opens a netlink socket in it. The caller holds the host-wide lock.
func (u Hub) Ensure() (*netlink.Handle, error) {
	if u != "" {
		if err := u.create(); err != nil {
			return nil, err
		}
	}
	return u.Open()
}

// PortPrefix begins the names of the host's ends.
const PortPrefix = "berth-"
