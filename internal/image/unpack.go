package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/image/inflate"
	"berth/internal/sys/purge"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
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
	u.ctx, u.in, u.root, u.left = ctx, inflate.NewStream(r), root.Name(), left
	top, err := root.Open(".")
	if err != nil {
		return err
	}
	defer top.Close()
	u.top = top
	u.folders, u.kept, u.buf = map[string]folder{}, 0, make([]byte, 256<<10)
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
		u.in.Most += inflate.PerEntry
		err = u.count()
		if err == nil {
			err = u.entry(h, t)
		}
		if err != nil {
			return entryErr(h.Name, space.Full(u.root, err))
		}
	}
	if _, err := io.Copy(io.Discard, u.in); err != nil { // the digest is of the whole stream
		return archiveErr("layer", err)
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
			if !slices.Contains(u.out, name) {
				u.out = append(u.out, strings.Clone(name))
			}
			return nil
		}
		return refuse.Invalidf("device nodes are refused: leave it out of the archive, and give the node the device by its spec")
	}
	return refuse.Invalidf("entries of type %q are refused", h.Typeflag)
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
	if _, twice := u.folders[name]; twice { // the last one counts
		_ = unix.Fremovexattr(fd, treetar.AccessList)
	}
	var f folder
	if f.times, err = timespec(h.ModTime); err != nil {
		return err
	}
	_, inherited := treetar.Lists(h)
	if f.inherited, err = u.listValue(inherited); err != nil {
		return err
	}
	return errors.Join(u.setAttrs(fd, h), u.remember(name, f))
}

// file writes a regular file.
func (u *unpacker) file(name string, h *tar.Header, r io.Reader) error {
	claim := u.take
	if treetar.IsSparse(h) {
		claim = u.takeSparse
	}
	if err := claim(h.Size); err != nil {
		return err
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
	before := u.in.N
	u.in.Most += h.Size
	if treetar.IsSparse(h) {
		err = u.sparse(f, h, r)
	} else {
		// The struct hides os.File's ReadFrom, which would allocate a buffer of its own for each file.
		_, err = io.CopyBuffer(struct{ io.Writer }{f}, r, u.buf)
	}
	if err != nil {
		return archiveErr("its data", err)
	}
	u.in.Most -= h.Size - (u.in.N - before) // holes are not in the stream
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
		return fmt.Errorf("hard link to %q: %w", shown(h.Linkname), err)
	}
	if target == name {
		return refuse.Invalidf("hard link to itself")
	}
	dir, err := u.open(path.Dir(target))
	if errors.Is(err, unix.ENOENT) {
		return refuse.Invalidf("hard link to %q, which the layer does not hold", shown(h.Linkname))
	}
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", shown(h.Linkname), err)
	}
	defer dir.Close()
	var st unix.Stat_t
	switch err := unix.Fstatat(int(dir.Fd()), path.Base(target), &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT || err == nil && isWhiteout(&st):
		return refuse.Invalidf("hard link to %q, which the layer does not hold", shown(h.Linkname))
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return refuse.Invalidf("hard link to %q, which is a folder", shown(h.Linkname))
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
		return purge.Tree(u.ctx, fmt.Sprintf("/proc/self/fd/%d/%s", u.fd(), base))
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// finish sets the folders' mtimes and their default access control lists, which new files in them inherit.
func (u *unpacker) finish() error {
	for name, f := range u.folders {
		dir, err := u.open(path.Dir(name))
		if err == nil {
			err = unix.UtimesNanoAt(int(dir.Fd()), path.Base(name), f.times, unix.AT_SYMLINK_NOFOLLOW)
			if err == nil && f.inherited != nil {
				err = setInherited(int(dir.Fd()), path.Base(name), f.inherited)
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
func setInherited(dir int, base string, list []byte) error {
	fd, err := unix.Openat(dir, base, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return setAttr(fd, treetar.DefaultList, string(list))
}

// opaque makes the folder dir hide the content that lower layers have in it.
func (u *unpacker) opaque(dir string) error {
	if err := u.enter(dir); err != nil {
		return err
	}
	return u.setOpaque(".")
}
