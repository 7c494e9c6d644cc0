package mounts

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// A tree is a detached copy of a mount (open_tree(2)). It is visible nowhere until it is moved to a path.
type tree struct {
	fd     int
	source string
	dir    bool
}

// openTree copies the mount at path, with the mounts beneath it if recursive. resolve holds openat2's RESOLVE_ flags.
func openTree(path string, resolve uint64, recursive bool) (*tree, error) {
	at, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: resolve | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, refuse.NotFoundf("%s is gone: %w", path, err)
	case errors.Is(err, unix.ELOOP):
		return nil, refuse.Invalidf("%s leads through a symbolic link: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(at)
	var st unix.Statx_t // without a word to a file server, which may be away
	if err := unix.Statx(at, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(at, "", flags)
	if err != nil {
		return nil, fmt.Errorf("copy the mount of %s: %w", path, err)
	}
	return &tree{fd: fd, source: path, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
}

// set sets mount flags (MOUNT_ATTR_) on the whole tree and, with a user namespace, an idmap. It makes the tree private:
// later mounts of the host do not appear in it, where they would escape the idmap and read-only, nor the other way
// round.
func (t *tree) set(flags uint64, userns *os.File) error {
	attr := unix.MountAttr{Attr_set: flags, Propagation: unix.MS_PRIVATE}
	if userns != nil {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(userns.Fd())
	}
	if err := unix.MountSetattr(t.fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("set the mount of %s: %w", t.source, err)
	}
	return nil
}

// move mounts the tree at to, which must be a folder if the source is one, else a file.
func (t *tree) move(to string) error {
	if err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s at %s: %w", t.source, to, err)
	}
	return nil
}

func (t *tree) close() { _ = unix.Close(t.fd) }

// bind mounts a copy of the mount at source on an existing path.
func bind(source, to string, flags uint64, userns *os.File) error {
	t, err := openTree(source, 0, false)
	if err != nil {
		return err
	}
	defer t.close()
	if err := t.set(flags, userns); err != nil {
		return unmappable(source, false, userns, err)
	}
	return t.move(to)
}
