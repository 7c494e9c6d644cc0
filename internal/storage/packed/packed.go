// Package packed keeps images that are one file, erofs or squashfs: those that berth packed here, and copies of those
// that an admin trusts; the kernel mounts such a file once, read-only, for all nodes.
//
// The kernel's file systems trust their images: whoever can write such a file can attack the kernel, also while it is
// mounted. So a file is mounted where it is only if berth wrote it and nobody but root could have changed it since. Any
// other file is copied into the store first, once an admin has said to trust it, and the copy is what is mounted.
//
// Nothing of a mount is journalled, because the kernel counts its users. Each node has a mount of its own in its own
// mount namespace; all of them are of one superblock, and so of one page cache, because they name the same loop device.
// The device is detached by the kernel with the last mount (LO_FLAGS_AUTOCLEAR), however the last node ends.
package packed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// Kind is the kernel's name of the file system in a file.
type Kind string

// The kinds of file systems.
const (
	EROFS    Kind = "erofs"
	SquashFS Kind = "squashfs"
)

// KindOf returns the kind that the name of a file stands for, "" for another name.
func KindOf(name string) Kind {
	for _, k := range []Kind{EROFS, SquashFS} {
		if strings.HasSuffix(name, "."+string(k)) {
			return k
		}
	}
	return ""
}

// File is a file that may be mounted, as it was when it was looked at.
type File struct {
	Image  string `json:"image"`  // for messages: the path that the user gave
	Path   string `json:"path"`   // absolute and free of symbolic links
	Kind   Kind   `json:"kind"`   // of its file system
	Digest string `json:"digest"` // of its content: "sha256:…"
	ID     ID     `json:"id"`
	Local  bool   `json:"local,omitempty"` // it must lie on a file system that only this host changes; the store's copies need not
	Lock   string `json:"lock"`            // held while a loop device for it is looked for or made
}

// ID tells a file from another one, and from itself with other content. A write changes both times; root can put back Mtime, also
// the root of a node that has the file's folder, but Ctime cannot be set.
type ID struct {
	Dev   uint64 `json:"dev"` // of its file system; another one after a reboot, perhaps
	Inode uint64 `json:"inode"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime"` // ns
	Ctime int64  `json:"ctime"` // ns
}

func idOf(st *unix.Stat_t) ID { return ID{st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()} }

// open opens a regular file for reading. Its path must be free of symbolic links.
func open(path string) (*os.File, *unix.Stat_t, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, // opening a FIFO must not block
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, nil, refuse.NotFoundf("there is no file %s", path)
	case err != nil:
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, nil, refuse.Invalidf("%s is not a regular file", path)
	}
	return f, &st, nil
}

// rootOnly reports whether only root can write a file. For a file with an ACL, the group's bits are the most that the ACL
// gives to any user.
func rootOnly(st *unix.Stat_t) bool { return st.Uid == 0 && st.Mode&0o022 == 0 }

// open opens the file, if it is still the one that was looked at.
func (f *File) open() (*os.File, error) {
	file, st, err := open(f.Path)
	if err != nil {
		if refuse.KindOf(err) == refuse.NotFound {
			return nil, refuse.NotFoundf("image file:%s is gone: %w", f.Image, err)
		}
		return nil, err
	}
	if idOf(st) != f.ID || !rootOnly(st) || f.Local && !isLocal(file) {
		file.Close()
		return nil, changed(f.Image)
	}
	return file, nil
}

// changed refuses a file that was changed since berth packed or trusted it.
func changed(path string) error {
	return refuse.Cannotf("pack it again, or, if you trust who changed it: berth image trust "+path,
		"image file:%s has changed since berth packed it, or others than root may write it", path)
}

// magic reads which file system a file holds, "" if none of those known here.
func magic(f io.ReaderAt) (Kind, error) {
	head := make([]byte, 1028) // erofs has its magic number at 1024, squashfs at 0
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the beginning: %w", err)
	}
	switch {
	case n == len(head) && binary.LittleEndian.Uint32(head[1024:]) == unix.EROFS_SUPER_MAGIC_V1:
		return EROFS, nil
	case n >= 4 && string(head[:4]) == "hsqs":
		return SquashFS, nil
	}
	return "", nil
}

// whole refuses a file that is shorter than its file system says. The kernel compares whole blocks at most.
func (k Kind) whole(f io.ReaderAt, size int64) error {
	super := make([]byte, 48)
	at := int64(0)
	if k == EROFS {
		at = 1024
	}
	if _, err := f.ReadAt(super, at); err != nil {
		return refuse.Invalidf("it is damaged: it ends in its superblock")
	}
	need := binary.LittleEndian.Uint64(super[40:]) // bytes_used of struct squashfs_super_block
	if k == EROFS {
		bits := super[12] // blkszbits and blocks of struct erofs_super_block
		if bits < 9 || bits > 16 {
			return refuse.Invalidf("it is damaged: blocks of 2^%d bytes", bits)
		}
		need = uint64(binary.LittleEndian.Uint32(super[36:])) << bits
	}
	if need > uint64(size) {
		return refuse.Invalidf("it is damaged: its file system has %d bytes, and the file %d", need, size)
	}
	return nil
}
