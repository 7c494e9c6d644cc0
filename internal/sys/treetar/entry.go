package treetar

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// file writes a regular file. It has no name, or a temporary one, until it is complete.
func (u *unpacker) file(dir int, base string, h *tar.Header, r io.Reader) error {
	f, err := NewFile(u.all, dir, base)
	if err != nil {
		return err
	}
	defer f.Discard()
	if IsSparse(h) {
		err = Holes(f.File, ctxReader{u, r}, u.in, h.Size, u.buf, func(n int64) error { u.progress(n, h.Size); return nil })
	} else {
		_, err = io.CopyBuffer(struct{ io.Writer }{f.File}, ctxReader{u, progress{u, r, h.Size}}, u.buf)
	}
	if err != nil {
		return err
	}
	if err := u.setAttrs(int(f.Fd()), h); err != nil {
		return err
	}
	return f.Commit()
}

func (u *unpacker) progress(n, size int64) {
	u.tally.Bytes += n
	if u.to.Progress != nil {
		u.to.Progress(u.tally.Bytes, max(size, u.tally.Bytes))
	}
}

// progress counts what is read from r.
type progress struct {
	u    *unpacker
	r    io.Reader
	size int64
}

func (p progress) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.u.progress(int64(n), p.size)
	return n, err
}

// ctxReader ends with the context.
type ctxReader struct {
	u *unpacker
	r io.Reader
}

func (c ctxReader) Read(b []byte) (int, error) {
	if err := c.u.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

// special makes a symbolic link or a FIFO.
func (u *unpacker) special(dir int, base string, h *tar.Header) error {
	kind := uint16(unix.S_IFLNK)
	if h.Typeflag == tar.TypeFifo {
		kind = unix.S_IFIFO
	}
	return u.replace(dir, base, func(name string) error {
		if kind == unix.S_IFIFO {
			return u.makeFIFO(dir, name)
		}
		return unix.Symlinkat(h.Linkname, dir, name)
	}, func(name string) error {
		fd, st, err := Look(dir, name)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if st.Mode&unix.S_IFMT != kind || st.Nlink != 1 { // another process put another file under this name meanwhile
			return refuse.Busyf("another program changes the target")
		}
		if err := u.chown(fd, h); err != nil {
			return err
		}
		if kind == unix.S_IFIFO {
			if own, _ := Lists(h); own != nil && u.to.Owners { // a FIFO is never opened
				u.tally.Attrs++
			}
			if err := u.all.chmod(fd, u.mode(h)); err != nil {
				return err
			}
		}
		return u.setTime(fd, h.ModTime)
	})
}

// makeFIFO makes a FIFO, and where lists are kept without the one that the folder has for new files: it is made in a folder that has none, because
// it is never opened to take its list away.
func (u *unpacker) makeFIFO(dir int, name string) (err error) {
	const mode = unix.S_IFIFO | 0o600
	if n, _ := unix.Fgetxattr(dir, DefaultList, nil); n <= 0 || !u.to.Owners {
		return unix.Mknodat(dir, name, mode, 0)
	}
	beside := temporary(&u.temps)
	if err := unix.Mkdirat(dir, beside, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unlinkat(dir, beside, unix.AT_REMOVEDIR)) }()
	fd, err := OpenFolder(dir, beside)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := u.dropLists(fd); err != nil {
		return err
	}
	if err := unix.Mknodat(fd, name, mode, 0); err != nil {
		return err
	}
	if err := unix.Renameat(fd, name, dir, name); err != nil {
		return errors.Join(err, unix.Unlinkat(fd, name, 0))
	}
	return nil
}

func (u *unpacker) chown(fd int, h *tar.Header) error {
	uid, gid := u.to.UID, u.to.GID
	if u.to.Owners {
		uid, gid = h.Uid, h.Gid
	}
	err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.EINVAL) {
		return refuse.Invalidf("its owner is %d:%d, and the node has no such id; without --archive it gets the node's user as owner", uid, gid)
	}
	return err
}

// link gives a file that is there already one more name.
func (u *unpacker) link(dir int, base string, h *tar.Header) error {
	target, err := u.name(h.Linkname)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
	}
	at, err := unix.Dup(u.base)
	if err != nil {
		return err
	}
	defer func() { unix.Close(at) }()
	parent, last := split(target)
	for parent != "" {
		var part string
		part, parent = cut(parent)
		next, err := OpenFolder(at, part)
		if err != nil {
			return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
		}
		unix.Close(at)
		at = next
	}
	fd, st, err := Look(at, last)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
	}
	defer unix.Close(fd)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFLNK, unix.S_IFIFO:
	default:
		return refuse.Invalidf("hard link to %q, which is no file", h.Linkname)
	}
	if now, old, err := Look(dir, base); err == nil {
		unix.Close(now)
		if inodeOf(&old) == inodeOf(&st) {
			return nil
		}
	}
	return u.replace(dir, base, func(name string) error { return u.all.Link(fd, dir, name) }, func(string) error { return nil })
}

func cut(name string) (part, rest string) {
	for i := range len(name) {
		if name[i] == '/' {
			return name[:i], name[i+1:]
		}
	}
	return name, ""
}

// replace makes something under a temporary name, completes it, and gives it its name.
func (u *unpacker) replace(dir int, base string, make, complete func(name string) error) error {
	temp := temporary(&u.temps)
	if err := make(temp); err != nil {
		return err
	}
	err := complete(temp)
	if err == nil {
		err = rename(dir, temp, base)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0)
	}
	return err
}

// rename puts a complete file in the place of another one.
func rename(dir int, from, to string) error {
	err := unix.Renameat(dir, from, dir, to)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return refuse.Busyf("there is a folder of this name already")
	}
	return err
}

// temporary returns a name that no other copy uses.
func temporary(count *int) string {
	*count++
	return ".berth-copy-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(*count)
}

// File is a regular file that gets its name when it is complete. On a file system that knows files without a name (O_TMPFILE)
// nothing is left of one whose process was killed; elsewhere a file with a name that begins with ".berth-copy-".
type File struct {
	*os.File
	all        Descriptors
	dir        int
	base, temp string
}

// NewFile makes a file that will be called base in a folder.
func NewFile(all Descriptors, dir int, base string) (*File, error) {
	f := &File{all: all, dir: dir, base: base}
	fd, err := unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		n := 0
		f.temp = temporary(&n)
		fd, err = unix.Openat(dir, f.temp, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("make the file: %w", err)
	}
	f.File = os.NewFile(uintptr(fd), base)
	return f, nil
}

// Commit gives the file its name, in the place of a file that has it.
func (f *File) Commit() error {
	if f.temp == "" {
		err := f.all.Link(int(f.Fd()), f.dir, f.base)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		n := 0
		f.temp = temporary(&n)
		if err := f.all.Link(int(f.Fd()), f.dir, f.temp); err != nil {
			return err
		}
	}
	err := rename(f.dir, f.temp, f.base)
	if err == nil {
		f.temp = ""
	}
	return err
}

// Discard closes the file, and removes it if it has no name yet.
func (f *File) Discard() {
	if f.temp != "" {
		_ = unix.Unlinkat(f.dir, f.temp, 0)
	}
	f.Close()
}
