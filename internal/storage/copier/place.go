package copier

import (
	"archive/tar"
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/inroot"
	"berth/internal/sys/refuse"
	"berth/internal/sys/treetar"
)

// Place is a path that is copied from or to, with the habits of podman cp.
type Place struct {
	Root int    // the folder that the path, and every link on its way, stays in; AT_FDCWD: an ordinary path of this process
	Path string // as the user gave it
	In   string // "the node", "this host": for messages
}

// open opens a path with O_PATH: the file behind it is not opened. Links are followed, within the root.
func (p *Place) open(at string) (fd int, st unix.Statx_t, err error) {
	if p.Root == unix.AT_FDCWD {
		fd, err = unix.Open(at, unix.O_PATH|unix.O_CLOEXEC, 0)
	} else {
		fd, err = inroot.Open(p.Root, at, unix.O_PATH, 0)
	}
	if err != nil {
		return -1, st, err
	}
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &st)
	return fd, st, err
}

// Find opens the source of a copy.
func (p *Place) Find() (int, error) {
	fd, _, err := p.open(p.Path)
	return fd, p.explain(p.Path, err)
}

func (p *Place) explain(at string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		return refuse.NotFoundf("%s: no such file or folder in %s", at, p.In)
	case errors.Is(err, unix.ENOTDIR):
		return refuse.NotFoundf("%s: a part of the path is no folder in %s", at, p.In)
	case errors.Is(err, unix.ELOOP):
		return refuse.Invalidf("%s: too many links, or a link of the kernel's own (/proc) in %s", at, p.In)
	}
	return &refuse.Error{Kind: refuse.Failed, What: at + " in " + p.In + ": " + err.Error(), Err: err}
}

// about says which path a refusal is about.
func (p *Place) about(err error) error {
	if r, ok := errors.AsType[*refuse.Error](err); ok {
		return &refuse.Error{Kind: r.Kind, What: p.Path + " in " + p.In + ": " + r.What, Remedy: r.Remedy, Err: r.Err}
	}
	return err
}

// For says where a tree goes: a folder that is there gets it under its own name; else it becomes Path. top is the tree's name, or ""
// for the content of a folder, which goes into Path itself. With exists, Path must be a folder that is there.
func (p *Place) For(top string, exists bool) func(*tar.Header) (dir int, as string, err error) {
	return func(first *tar.Header) (int, string, error) {
		fd, st, err := p.open(p.Path)
		folder := top == "" || first.Typeflag == tar.TypeDir
		switch {
		case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
			dir, err := reopen(fd)
			return dir, top, p.explain(p.Path, err)
		case err == nil && (folder || strings.HasSuffix(p.Path, "/")):
			return -1, "", refuse.Busyf("%s is no folder in %s", p.Path, p.In)
		case err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
			return -1, "", refuse.Busyf("%s is a device, a FIFO or a socket in %s, which a copy would replace", p.Path, p.In)
		case err != nil && !errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOENT) && (exists || !folder && strings.HasSuffix(p.Path, "/")):
			return -1, "", p.explain(p.Path, err)
		}
		return p.under(top == "", p.Path)
	}
}

// under opens the folder that a new name lies in. inside makes the folder of that name too, and returns it.
func (p *Place) under(inside bool, at string) (int, string, error) {
	at = strings.TrimRight(at, "/")
	parent, base := path.Split(at)
	if base == "." || base == ".." || base == "" {
		return -1, "", refuse.NotFoundf("%s: no such folder in %s", p.Path, p.In)
	}
	if parent == "" {
		parent = "."
	}
	fd, st, err := p.open(parent)
	if err != nil {
		return -1, "", p.explain(parent, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return -1, "", refuse.NotFoundf("%s: no folder in %s", parent, p.In)
	}
	dir, err := reopen(fd)
	if err != nil || !inside {
		return dir, base, p.explain(parent, err)
	}
	if err := unix.Mkdirat(dir, base, 0o755); err != nil {
		return -1, "", p.explain(p.Path, err)
	}
	dir, err = treetar.OpenFolder(dir, base)
	return dir, "", p.explain(p.Path, err)
}

// reopen opens a folder that was found, for reading.
func reopen(fd int) (int, error) {
	return treetar.OpenFolder(fd, ".")
}
