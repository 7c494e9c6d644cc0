package scratch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
)

// Disk is the step scratch.disk: a file with a file system that takes what a machine writes to its root. It has all its place on
// the host's disk, so that a full one is told before the machine is made, and exists until the node is removed. The host never
// mounts it: what is on it comes from a guest.
type Disk struct {
	Path string      `json:"path"`
	Size vnode.Bytes `json:"size"`
}

// Kind returns scratch.disk.
func (d *Disk) Kind() string { return "scratch.disk" }

func (d *Disk) String() string {
	return fmt.Sprintf("file %s of %s for the machine's writes, %s", d.Path, d.Size, vnode.Ext4)
}

// Prepare refuses a host without the program that makes the file system, and a path that is taken: to undo a step that was begun
// removes what is there.
func (d *Disk) Prepare(context.Context) error {
	if _, err := os.Lstat(d.Path); !errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(err, refuse.Busyf("there is %s already, which no record of Berth's names: remove it", d.Path))
	}
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(d.Path), &st); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the free space of %s: %w", filepath.Dir(d.Path), err)
	} else if free := int64(st.Bavail) * st.Bsize; err == nil && int64(d.Size) > free {
		return refuse.Cannotf("choose a smaller delta.size, or free some of it", "the file system of %s has %d MiB free, and the machine's disk needs %d MiB",
			filepath.Dir(d.Path), free>>20, int64(d.Size)>>20)
	}
	name, pkg := mkfs(vnode.Ext4)
	_, err := program(name, pkg)
	return err
}

// Do makes the file and its file system. Errors: refuse.Cannot if there is no room for it.
func (d *Disk) Do(context.Context) error {
	f, err := os.OpenFile(d.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("make the machine's disk: %w", err)
	}
	defer f.Close()
	fault.Point("disk's file made")
	if err := reserve(f, 0, int64(d.Size), "the file system of "+filepath.Dir(d.Path)); err != nil {
		return err
	}
	fault.Point("disk's place reserved")
	return makeFS(f, vnode.Ext4, "/proc/self/fd/0") // a program that a killed berth leaves at work has this file, and no later one of its name
}

// Verify reads the size back, and that all of it has a place.
func (d *Disk) Verify(context.Context) error {
	var st unix.Stat_t
	if err := unix.Lstat(d.Path, &st); err != nil {
		return fmt.Errorf("verify the machine's disk: %w", &fs.PathError{Op: "stat", Path: d.Path, Err: err})
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != int64(d.Size) || st.Blocks*512 < st.Size {
		return fmt.Errorf("verify the machine's disk: %s has %d bytes, %d of them with a place on the disk, not %d", d.Path, st.Size, st.Blocks*512, int64(d.Size))
	}
	return nil
}

// OnDisk implements step.Lasting.
func (d *Disk) OnDisk() error {
	return errors.Join(file.SyncDir(d.Path), file.SyncDir(filepath.Dir(d.Path)))
}

// Undo removes the file.
func (d *Disk) Undo(context.Context) error {
	if err := os.Remove(d.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the machine's disk: %w", err)
	}
	return nil
}
