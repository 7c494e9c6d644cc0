// Package purge removes trees whose shape a node chose.
package purge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Tree removes the file or folder at path with everything below it. It returns nil if nothing is there.
//
// A node chooses the shape of the tree. So Tree follows no path: it removes each name from an open folder. Depth
// costs nothing: a folder that is not empty is moved up into the top one and emptied there, so at most two folders are
// open. Go's RemoveAll keeps one folder open per level and fails at the limit of open files. If it is killed,
// the next call removes the rest.
func Tree(ctx context.Context, path string) error {
	err := os.Remove(path) // a file, a link, an empty folder
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if info, statErr := os.Lstat(path); statErr != nil || !info.IsDir() {
		return err
	}
	top, err := unix.Open(path, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	defer unix.Close(top)
	f := flattener{ctx: ctx, top: top}
	for {
		names, err := f.empty(top)
		if err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
		if len(names) == 0 {
			return os.Remove(path)
		}
		for _, n := range names {
			if err := f.folder(n); err != nil {
				return fmt.Errorf("remove %s: %w", path, err)
			}
		}
	}
}

// flattener removes a tree. It moves every folder into top before it empties it.
type flattener struct {
	ctx  context.Context
	top  int
	next int // number for the next name in top
}

// folder empties and removes a folder of top.
func (f *flattener) folder(name string) error {
	fd, err := unix.Openat(f.top, name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		names, err := f.empty(fd)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return unix.Unlinkat(f.top, name, unix.AT_REMOVEDIR)
		}
		for _, n := range names {
			if err := f.lift(fd, n); err != nil {
				return err
			}
		}
	}
}

// lift moves a folder up into top under a free name.
func (f *flattener) lift(dir int, name string) error {
	for {
		f.next++
		err := unix.Renameat2(dir, name, f.top, ".berth-"+strconv.Itoa(f.next), unix.RENAME_NOREPLACE)
		if err != unix.EEXIST {
			return err
		}
	}
}

// empty removes all entries of a folder except folders that are not empty. It returns the names of up to about two
// thousand of those; none means that the folder is empty.
func (f *flattener) empty(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(fd), "folder")
	defer d.Close()
	var full []string
	for len(full) < 1000 {
		if err := f.ctx.Err(); err != nil {
			return nil, err
		}
		names, err := d.Readdirnames(1000)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			err := unix.Unlinkat(fd, n, 0)
			if err == unix.EISDIR {
				err = unix.Unlinkat(fd, n, unix.AT_REMOVEDIR)
			}
			switch err {
			case nil, unix.ENOENT:
			case unix.ENOTEMPTY:
				full = append(full, n)
			default:
				return nil, &fs.PathError{Op: "unlink", Path: filepath.Base(n), Err: err}
			}
		}
	}
	return full, nil
}
