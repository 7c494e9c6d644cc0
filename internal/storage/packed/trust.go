package packed

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

	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
)

// Trust copies a file from another maker into the store, where only root can change it, so that nodes can mount it. The
// copy shares the file's blocks where the file system can do that. The copy is hashed and mounted.
//
// Errors: refuse.NotFound if there is no file, refuse.Invalid if it holds no known file system or is damaged, refuse.Cannot
// if the copy does not fit.
func (s Store) Trust(ctx context.Context, path string) (Record, error) {
	real, f, id, err := find(path)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	if err := known(f); err != nil { // before all of it is copied
		return Record{}, fmt.Errorf("image file:%s: %w", path, err)
	}
	if err := s.make(); err != nil {
		return Record{}, err
	}
	to, err := os.OpenFile(s.files(), unix.O_TMPFILE|os.O_RDWR, 0o400)
	if err != nil {
		return Record{}, fmt.Errorf("copy %s into the store: %w", path, err)
	}
	defer to.Close() // without a name the kernel frees it, also after a kill
	r := Record{Copy: true}
	if r.Size, err = fill(ctx, to, f, id.Size, s.files()); err != nil {
		return Record{}, fmt.Errorf("copy %s into the store: %w", path, space.Full(s.files(), err))
	}
	fault.Point("trusted file copied")
	if err = known(to); err == nil {
		r.Kind, err = magic(to)
	}
	if err == nil {
		err = r.Kind.whole(to, r.Size)
	}
	if err == nil {
		r.Trailer, err = readTrailer(to, r.Size)
	}
	if err == nil {
		r.Digest, err = digestOf(io.NewSectionReader(to, 0, r.Size))
	}
	if err != nil {
		return Record{}, fmt.Errorf("image file:%s: %w", path, err)
	}
	// Loop devices read whole blocks.
	if err := errors.Join(to.Truncate(roundUp(r.Size)), to.Sync()); err != nil {
		return Record{}, fmt.Errorf("copy %s into the store: %w", path, space.Full(s.files(), err))
	}
	if err := s.readAll(ctx, to, r.Kind, path); err != nil {
		return Record{}, err
	}
	fault.Point("trusted copy read")
	return s.keep(ctx, to, r, Place{Path: real, ID: id})
}

// known refuses a file that holds neither of the known file systems.
func known(f io.ReaderAt) error {
	kind, err := magic(f)
	if err == nil && kind == "" {
		err = refuse.Invalidf("it holds neither erofs nor squashfs")
	}
	return err
}

// readAll mounts a copy and reads every file in it, so that damage is found now and not by a node.
func (s Store) readAll(ctx context.Context, f *os.File, kind Kind, image string) error {
	m, err := mount(ctx, f, kind, image, s.lockFile())
	if err != nil {
		return err
	}
	defer m.Close()
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(m.Fd())))
	if err != nil {
		return unreadable(image, kind, err)
	}
	defer root.Close()
	err = readTree(ctx, root, ".")
	if err != nil && ctx.Err() == nil {
		return unreadable(image, kind, err)
	}
	return err
}

// readTree reads every file below a folder. Unlike fs.WalkDir it knows names that are not UTF-8.
func readTree(ctx context.Context, root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := root.Lstat(path)
		switch {
		case err != nil:
		case info.IsDir():
			err = readTree(ctx, root, path)
		case info.Mode().IsRegular():
			err = readFile(ctx, root, path)
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

func readFile(ctx context.Context, root *os.Root, path string) error {
	in, err := root.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(io.Discard, until{ctx, in})
	return err
}

// keep gives a verified copy its name and records it.
func (s Store) keep(ctx context.Context, to *os.File, r Record, p Place) (Record, error) {
	held, err := lock.Open(ctx, s.lockFile())
	if err != nil {
		return Record{}, err
	}
	defer held.Close()
	err = linkOpen(to, s.file(r.Digest))
	if errors.Is(err, fs.ErrExist) { // copied by another command, or trusted before
		err = s.replaceRotten(to, r)
	}
	if err != nil {
		return Record{}, err
	}
	if err := file.SyncDir(s.files()); err != nil {
		return Record{}, err
	}
	fault.Point("trusted copy in place")
	return s.addLocked(r, p)
}

// replaceRotten puts a verified copy in the place of one whose content has changed, as after a fault of the disk. One that is
// whole stays, because all nodes that mount the same file share its pages. The caller holds the store's lock.
func (s Store) replaceRotten(to *os.File, r Record) error {
	there, _, err := open(s.file(r.Digest))
	if err == nil {
		digest, err := digestOf(io.NewSectionReader(there, 0, r.Size))
		there.Close()
		if err == nil && digest == r.Digest {
			return nil
		}
	}
	fresh := s.file(r.Digest) + ".new" // without a record: Sweep removes what a kill leaves
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := linkOpen(to, fresh); err != nil {
		return err
	}
	fault.Point("rotten copy to be replaced")
	return os.Rename(fresh, s.file(r.Digest))
}

// linkOpen gives an open file without a name a name. It is synced once more: btrfs skips what has no name (btrfs_log_inode_parent in
// fs/btrfs/tree-log.c), and after a power cut the name, which its folder's sync writes, is that of an empty file.
func linkOpen(f *os.File, path string) error {
	err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &os.LinkError{Op: "link", Old: "the new file", New: path, Err: err}
	}
	return f.Sync()
}

// fill copies a file of size bytes and returns how many it had.
func fill(ctx context.Context, to, from *os.File, size int64, dir string) (int64, error) {
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		info, err := to.Stat()
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
	if err := space.Need(dir, size); err != nil {
		return 0, err
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	return io.Copy(to, until{ctx, io.LimitReader(from, size)})
}

// until stops reading when its context ends.
type until struct {
	ctx context.Context
	r   io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}

// folderOf returns the folder of a new file, with symbolic links resolved, and the file's path in it.
func folderOf(path string) (dir, file string, err error) {
	dir, err = filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", refuse.NotFoundf("there is no folder %s", filepath.Dir(path))
	}
	file = filepath.Join(dir, filepath.Base(path))
	if err == nil {
		err = jsonfile.CheckText("the path", file) // records and specs name it
	}
	return dir, file, err
}
