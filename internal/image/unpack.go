package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/internal/sys/treetar"
)

// maxID is the largest uid and gid in a node's id range. Larger owners are refused, not changed to nobody: a file whose
// owner is outside the range could be neither written nor copied up (EOVERFLOW), and a silent change of owner may
// change who can read the file.
const maxID = treetar.MostImageID

// unpack writes the tar stream r into root, an empty folder that no other process writes to. It subtracts what it wrote
// from left. u.size is then the bytes of the files.
//
// Folders that the layer needs but does not list get owner root and mode 0755.
func (u *unpacker) unpack(ctx context.Context, root *os.Root, r io.Reader, left *Limits) error {
	u.ctx, u.in, u.root, u.left = ctx, &counter{r: r}, root, left
	u.folders, u.buf = map[string]*tar.Header{}, make([]byte, 256<<10)
	defer u.forget()
	t := tar.NewReader(u.in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return archiveErr("layer", err)
		}
		err = u.count()
		if err == nil {
			err = u.entry(h, t)
		}
		if err != nil {
			return entryErr(h.Name, err)
		}
	}
	return u.finish()
}

// entry writes one entry.
func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if u.plain {
		if err := plainEntry(h); err != nil {
			return err
		}
	}
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	base := path.Base(name)
	if base == whiteoutOpaque {
		return u.opaque(path.Dir(name))
	}
	if strings.Contains("/"+name, "/"+whiteoutMeta) {
		return nil
	}
	if err := u.enter(path.Dir(name)); err != nil {
		return err
	}
	if victim, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		return u.whiteout(victim)
	}
	if h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID {
		return refuse.Invalidf("its owner is %d:%d, and a node has only the ids 0 to %d", h.Uid, h.Gid, maxID)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.folder(name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(name, h, r)
	case tar.TypeSymlink, tar.TypeFifo:
		return u.special(name, h)
	case tar.TypeLink:
		return u.hardLink(name, h)
	case tar.TypeChar, tar.TypeBlock:
		if isStandard(name, h) {
			u.out = append(u.out, name)
			return nil
		}
		return refuse.Invalidf("device nodes are refused: leave it out of the archive, and give the node the device by its spec")
	}
	return refuse.Invalidf("entries of type %q are refused", h.Typeflag)
}

// enter opens the folder dir as the parent of the next entries, and makes it if it is missing.
func (u *unpacker) enter(dir string) error {
	if u.parent != nil && u.dir == dir {
		return nil
	}
	f, err := u.root.OpenFile(dir, unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // ENOTDIR: a whiteout is in its place
		if err := errors.Join(u.count(), u.enter(path.Dir(dir))); err != nil {
			return err
		}
		if err := u.makeFolder(dir); err != nil {
			return err
		}
		f, err = u.root.OpenFile(dir, unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return fmt.Errorf("open folder %s: %w", dir, err)
	}
	u.forget()
	u.dir, u.parent = dir, f
	return nil
}

// makeFolder makes the last part of name in the parent, owned by root, with mode 0755. It leaves an existing folder as
// it is.
func (u *unpacker) makeFolder(name string) error {
	base := path.Base(name)
	if err := u.mkdir(base); !errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(u.fd(), base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if !isWhiteout(&st) {
		return refuse.Invalidf("%s is not a folder", name)
	}
	// The layer removes the lower folder and makes a new one: nothing of the lower one may show through.
	if err := unix.Unlinkat(u.fd(), base, 0); err != nil {
		return err
	}
	if err := u.mkdir(base); err != nil {
		return err
	}
	return u.setOpaque(base)
}

// mkdir makes a folder in the parent with mode 0755, whatever the umask.
func (u *unpacker) mkdir(base string) error {
	if err := unix.Mkdirat(u.fd(), base, 0o755); err != nil {
		return err
	}
	return unix.Fchmodat(u.fd(), base, 0o755, 0)
}

// folder makes the folder of an entry, or uses an existing one, and sets its attributes.
func (u *unpacker) folder(name string, h *tar.Header) error {
	base := path.Base(name)
	if name != "." {
		var st unix.Stat_t
		err := unix.Fstatat(u.fd(), base, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR && !isWhiteout(&st) {
			if err := u.clear(name); err != nil {
				return err
			}
		}
		if err := u.makeFolder(name); err != nil {
			return err
		}
	}
	fd, err := unix.Openat(u.fd(), base, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if u.folders[name] != nil { // listed twice: the last one counts
		_ = unix.Fremovexattr(fd, treetar.AccessList)
	}
	u.folders[name] = h
	return u.setAttrs(fd, h)
}

// file writes a regular file.
func (u *unpacker) file(name string, h *tar.Header, r io.Reader) error {
	if !isSparse(h) {
		if err := u.take(h.Size); err != nil {
			return err
		}
	}
	if err := u.clear(name); err != nil {
		return err
	}
	fd, err := unix.Openat(u.fd(), path.Base(name), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if isSparse(h) {
		err = u.sparse(f, h, r)
	} else {
		// The struct hides os.File's ReadFrom, which would allocate a buffer of its own for each file.
		_, err = io.CopyBuffer(struct{ io.Writer }{f}, r, u.buf)
	}
	if err != nil {
		return archiveErr("its data", err)
	}
	if err := u.setAttrs(fd, h); err != nil {
		return err
	}
	ts, err := timespec(h.ModTime)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(u.fd(), path.Base(name), ts, unix.AT_SYMLINK_NOFOLLOW)
}

// special makes a FIFO or a symbolic link, whose target is never followed.
func (u *unpacker) special(name string, h *tar.Header) error {
	ts, err := timespec(h.ModTime)
	if err != nil {
		return err
	}
	if err := u.clear(name); err != nil {
		return err
	}
	base := path.Base(name)
	if h.Typeflag == tar.TypeSymlink {
		err = unix.Symlinkat(h.Linkname, u.fd(), base)
	} else {
		err = unix.Mknodat(u.fd(), base, unix.S_IFIFO|0o600, 0)
	}
	if err != nil {
		return err
	}
	if err := unix.Fchownat(u.fd(), base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeFifo { // cannot be a link: just made, in a folder that no other process writes to
		own, _ := treetar.Lists(h)
		if own != nil { // a FIFO is never opened
			u.unlisted++
		}
		if err := unix.Fchmodat(u.fd(), base, own.Narrow(uint32(h.Mode)&0o7777), 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(u.fd(), base, ts, unix.AT_SYMLINK_NOFOLLOW)
}

// hardLink links to a file that an earlier entry of the layer made.
func (u *unpacker) hardLink(name string, h *tar.Header) error {
	target, err := cleanName(h.Linkname)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
	}
	if target == name {
		return refuse.Invalidf("hard link to itself")
	}
	dir, err := u.root.OpenFile(path.Dir(target), unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return refuse.Invalidf("hard link to %q, which the layer does not hold", h.Linkname)
	}
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
	}
	defer dir.Close()
	var st unix.Stat_t
	switch err := unix.Fstatat(int(dir.Fd()), path.Base(target), &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT || err == nil && isWhiteout(&st):
		return refuse.Invalidf("hard link to %q, which the layer does not hold", h.Linkname)
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return refuse.Invalidf("hard link to %q, which is a folder", h.Linkname)
	}
	if same, err := u.is(name, &st); same || err != nil {
		return err
	}
	if err := u.clear(name); err != nil {
		return err
	}
	return unix.Linkat(int(dir.Fd()), path.Base(target), u.fd(), path.Base(name), 0)
}

// is reports whether name in the parent is the same file as st.
func (u *unpacker) is(name string, st *unix.Stat_t) (bool, error) {
	var own unix.Stat_t
	err := unix.Fstatat(u.fd(), path.Base(name), &own, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return false, nil
	}
	return err == nil && own.Dev == st.Dev && own.Ino == st.Ino, err
}

// clear removes what an earlier entry of the layer made under this name: the later entry wins.
func (u *unpacker) clear(name string) error {
	if name == "." {
		return refuse.Invalidf("the root must be a folder")
	}
	base := path.Base(name)
	err := unix.Unlinkat(u.fd(), base, 0)
	if err == unix.EISDIR {
		r, err := u.root.OpenRoot(path.Dir(name))
		if err != nil {
			return err
		}
		defer r.Close()
		return r.RemoveAll(base)
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// finish sets the folders' mtimes and their default access control lists, which new files in them inherit.
func (u *unpacker) finish() error {
	for name, h := range u.folders {
		ts, err := timespec(h.ModTime)
		if err != nil {
			return entryErr(name, err)
		}
		dir, err := u.root.OpenFile(path.Dir(name), unix.O_DIRECTORY, 0)
		if err == nil {
			err = unix.UtimesNanoAt(int(dir.Fd()), path.Base(name), ts, unix.AT_SYMLINK_NOFOLLOW)
			if _, inherited := treetar.Lists(h); err == nil && inherited != nil {
				err = u.setInherited(int(dir.Fd()), path.Base(name), inherited)
			}
			dir.Close()
		}
		var errno syscall.Errno
		if errors.As(err, &errno) && (errno == unix.ENOENT || errno == unix.ENOTDIR) {
			continue // a later entry replaced it
		}
		if err != nil {
			return entryErr(name, err)
		}
	}
	return nil
}

// setInherited sets the default access control list of a folder, which new files in it inherit.
func (u *unpacker) setInherited(dir int, base string, list *treetar.ACL) error {
	fd, err := unix.Openat(dir, base, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return u.setList(fd, treetar.DefaultList, list)
}

// opaque makes the folder dir hide the content that lower layers have in it.
func (u *unpacker) opaque(dir string) error {
	if err := u.enter(dir); err != nil {
		return err
	}
	return u.setOpaque(".")
}
