package netif

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
)

// Pin keeps a node's network namespace beyond its init by a bind mount, so that a lent link can be brought home with
// all its settings, and a leased address given back. It is the only mount of a node that is visible on the host, and
// only nodes with such interfaces have it.
type Pin struct {
	NS    NS     `json:"ns"`
	Inode uint64 `json:"netns_inode,omitempty"`
}

// Kind implements step.Step.
func (p *Pin) Kind() string { return "link.pin" }

func (p *Pin) String() string {
	return fmt.Sprintf("the network namespace at %s, so that it outlives the node's init", p.NS.Pin)
}

// Prepare records the namespace.
func (p *Pin) Prepare(context.Context) (err error) {
	p.Inode, err = p.NS.inode()
	return err
}

// Do mounts the namespace on the pin.
func (p *Pin) Do(context.Context) error {
	if IsPinned(p.NS.Pin) {
		return nil
	}
	ns, err := p.NS.Open()
	if err != nil {
		return err
	}
	defer ns.Close()
	if ino, err := Inode(ns); err != nil || ino != p.Inode {
		return fmt.Errorf("pin network namespace %d: another is in its place: %w", p.Inode, errors.Join(err, fs.ErrNotExist))
	}
	if err := pin(ns, p.NS.Pin, "pin's file made"); err != nil {
		return fmt.Errorf("pin network namespace on %s: %w", p.NS.Pin, err)
	}
	return nil
}

// Verify reads back which namespace the pin holds.
func (p *Pin) Verify(context.Context) error {
	ino, err := p.pinned()
	if err == nil && ino != p.Inode {
		err = fmt.Errorf("%s holds namespace %d, not %d", p.NS.Pin, ino, p.Inode)
	}
	return err
}

// Undo removes the pin. A mount of another namespace there is not this step's and stays.
func (p *Pin) Undo(context.Context) error {
	for IsPinned(p.NS.Pin) {
		ino, err := p.pinned()
		if err != nil {
			return err
		}
		if ino != p.Inode {
			return nil
		}
		if err := unix.Unmount(p.NS.Pin, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount pin %s: %w", p.NS.Pin, err)
		}
		fault.Point("pin unmounted")
	}
	if err := os.Remove(p.NS.Pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pin: %w", err)
	}
	return nil
}

// pinned returns the inode of the namespace that the pin holds; 0 if it holds none.
func (p *Pin) pinned() (uint64, error) {
	if !IsPinned(p.NS.Pin) {
		return 0, nil
	}
	f, err := os.Open(p.NS.Pin)
	if err != nil {
		return 0, fmt.Errorf("open pin: %w", err)
	}
	defer f.Close()
	return Inode(f)
}
