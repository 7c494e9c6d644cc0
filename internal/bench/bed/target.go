package bed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/bench/result"
	"berth/internal/host/block"
	"berth/internal/spec/vnode"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// Storage says what is laid out or opened to be measured: a file in a folder, or a device.
type Storage struct {
	Dir         string // folder in which the data file is laid out; removed afterwards
	Device      string // block device to use instead; read only …
	DestroyData bool   // … unless this is given: then its first Size bytes are overwritten
	Size        int64  // bytes of file or device that are used

	fresh bool // trials make a second file beside the first
}

// DataFile is the name of the file in the folder that is measured. A run uses the file that a killed run left.
const DataFile = ".berth-bench.data"

// FreshName is added to it for a file that is made and removed in each trial.
const FreshName = ".new"

// mark is the extended attribute of Berth's data files. The name alone proves nothing: anybody can use it.
const mark = "user.berth.bench"

// spare is left free on the file system beside the data file.
const spare = 64 << 20

// prepare makes the target ready and writes each of its blocks once. It refuses before it writes anything. undo removes what prepare
// made; call it also when ctx is done.
func prepare(ctx context.Context, o Storage, report func(done, total int64)) (t result.Target, undo func() error, err error) {
	var f *os.File
	if o.Device != "" {
		f, t, err = openDevice(o)
	} else {
		f, t, err = createFile(o)
	}
	if err != nil {
		return result.Target{}, nil, err
	}
	undo = f.Close
	if t.Kind == "file" {
		undo = func() error { return errors.Join(os.Remove(t.Path), f.Close()) } // removed while its lock is held
	}
	if t.DirectIO, err = directIOUnit(t.Path); err == nil && !t.ReadsOnly {
		t.Written, err = true, write(ctx, f, t.Size, report)
	}
	if err != nil {
		return result.Target{}, nil, errors.Join(err, undo())
	}
	return t, undo, nil
}

func createFile(o Storage) (*os.File, result.Target, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, result.Target{}, fmt.Errorf("find the folder %s: %w", o.Dir, err)
	}
	need := o.Size
	if o.fresh {
		need *= 2
	}
	if err := CheckFolder(dir, need); err != nil {
		return nil, result.Target{}, err
	}
	t := result.Target{Kind: "file", Path: filepath.Join(dir, DataFile), Size: o.Size}
	f, err := newFile(t.Path)
	if err != nil {
		return nil, result.Target{}, err
	}
	if o.fresh { // a second one can be had: now, not in the first trial
		second, err := newFile(t.Path + FreshName)
		if err == nil {
			err = errors.Join(os.Remove(t.Path+FreshName), second.Close())
		}
		if err != nil {
			return nil, result.Target{}, errors.Join(err, os.Remove(t.Path), f.Close())
		}
	}
	return f, t, nil
}

// newFile makes an empty data file with Berth's mark, and locks it, so that two runs do not use the same
// file. It empties a file that a killed run left, and touches no other file of that name.
func newFile(path string) (*os.File, error) {
	made := true
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		made = false
		f, err = os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, foreign(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create the data file: %w", err)
	}
	if made { // before the lock: a file that was left without one is known
		err = unix.Fsetxattr(int(f.Fd()), mark, []byte("1"), 0)
		if errors.Is(err, unix.ENOTSUP) {
			err = nil // such a file system can hold no mark: there a file that is left must be removed by hand
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("mark the data file as Berth's: %w", err), os.Remove(path), f.Close())
		}
	}
	if err := own(f, path, made); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func foreign(path string) error {
	return refuse.Busyf("%s exists and is not known as a data file of an earlier run (it has no attribute %s): move it away, or remove it if a killed run left it",
		path, mark)
}

// own locks the data file. If the file was there before, own empties it.
func own(f *os.File, path string, made bool) error {
	if free, err := lock.Try(f); err != nil {
		return err
	} else if !free {
		return refuse.Busyf("another run measures here: %s is locked", path)
	}
	opened, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	// The run that held the lock may have removed the file between our open and our lock.
	if named, err := os.Lstat(path); err != nil || !os.SameFile(opened, named) {
		return refuse.Busyf("another run measured here until now: %s is gone; try again", path)
	}
	if st, ok := opened.Sys().(*syscall.Stat_t); !opened.Mode().IsRegular() || !ok || st.Nlink != 1 {
		return foreign(path)
	}
	if made {
		return nil
	}
	if n, err := unix.Fgetxattr(int(f.Fd()), mark, nil); err != nil || n == 0 {
		return foreign(path)
	}
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("empty the data file: %w", err)
	}
	return nil
}

// CheckFolder refuses a folder in which no data file of this size can be made.
func CheckFolder(dir string, size int64) error {
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return refuse.NotFoundf("there is no folder %s", dir)
	case err != nil:
		return fmt.Errorf("find the folder to measure in: %w", err)
	case !fi.IsDir():
		return refuse.Invalidf("%s is not a folder", dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("ask for the free space of %s: %w", dir, err)
	}
	if st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC {
		// Since Linux 6.6 tmpfs takes O_DIRECT and ignores it, so opening a file does not tell.
		return refuse.Cannotf("choose a folder on a disk", "%s is in memory: there is no disk to measure", dir)
	}
	if free := int64(st.Bavail) * st.Bsize; free < size+spare {
		return refuse.Cannotf("free some, choose another folder, or a smaller --size",
			"%s has %s free, and measuring takes %s and %s to spare", dir,
			vnode.Bytes(free>>20<<20), vnode.Bytes(size), vnode.Bytes(spare))
	}
	return nil
}

// heldDevice is a device that is written to, held so that nobody mounts it meanwhile. A machine that has it holds it instead.
type heldDevice struct {
	Storage
	letGo func() error // nil: it is let go
}

// hold notes what is held of a target, and returns the function that ends it.
func (b *Bed) hold(o Storage, t result.Target, undo func() error) func() error {
	if t.Kind == "file" || t.ReadsOnly {
		return undo
	}
	h := &heldDevice{o, undo}
	b.held = append(b.held, h)
	return h.end
}

func (h *heldDevice) end() error {
	if h.letGo == nil {
		return nil
	}
	end := h.letGo
	h.letGo = nil
	return end()
}

// lend lets go of the devices: a machine holds them alone.
func (b *Bed) lend() error {
	var errs []error
	for _, h := range b.held {
		errs = append(errs, h.end())
	}
	return errors.Join(errs...)
}

// holdAgain holds the devices that no machine has taken.
func (b *Bed) holdAgain() error {
	for _, h := range b.held {
		f, _, err := openDevice(h.Storage)
		if err != nil {
			return err
		}
		h.letGo = f.Close
	}
	return nil
}

func openDevice(o Storage) (*os.File, result.Target, error) {
	if _, err := block.Resolve("/sys", o.Device); err != nil {
		return nil, result.Target{}, err
	}
	flags := os.O_RDONLY
	if o.DestroyData {
		flags = os.O_RDWR | unix.O_EXCL // held to the end, so that the device cannot be mounted meanwhile (open(2), O_EXCL)
	}
	f, err := os.OpenFile(o.Device, flags, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, result.Target{}, refuse.Busyf("%s, or a partition of it, is in use: its data will not be destroyed", o.Device)
	}
	if err != nil {
		return nil, result.Target{}, fmt.Errorf("open the device: %w", err)
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, result.Target{}, errors.Join(fmt.Errorf("ask for the size of %s: %w", o.Device, err), f.Close())
	}
	return f, result.Target{Kind: "device", Path: o.Device, Size: min(o.Size, end), ReadsOnly: !o.DestroyData}, nil
}

// directIOUnit returns the size that direct requests must be a multiple of, 0 where the kernel does not say (before
// Linux 6.1, and some file systems). It refuses where there is no direct I/O.
func directIOUnit(path string) (int64, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, refuse.Cannotf("choose a folder on a disk's file system", "no direct I/O on %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err != nil || st.Mask&unix.STATX_DIOALIGN == 0 {
		return 0, nil // an old kernel: not to know is no failure
	}
	if st.Dio_offset_align == 0 {
		return 0, refuse.Cannotf("choose a folder on another file system", "the file system of %s has no direct I/O", path)
	}
	return int64(st.Dio_offset_align), nil
}

// write fills the first size bytes with data that does not compress, and brings them to the disk: a hole or an extent
// that was never written would be read without the disk.
func write(ctx context.Context, f *os.File, size int64, report func(done, total int64)) error {
	src := rand.NewChaCha8([32]byte{'b', 'e', 'r', 't', 'h'})
	buf := make([]byte, 4<<20)
	for done := int64(0); done < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buf[:min(int64(len(buf)), size-done)]
		_, _ = src.Read(part) // never fails
		n, err := f.Write(part)
		if fi, e := f.Stat(); errors.Is(err, unix.ENOSPC) && e == nil && fi.Mode().IsRegular() {
			return refuse.Cannotf("free some, choose another folder, or a smaller --size", "the disk became full while the data was laid out in %s", f.Name())
		}
		if err != nil {
			return fmt.Errorf("lay out the data: %w", err)
		}
		done += int64(n)
		report(done, size)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("lay out the data: %w", err)
	}
	// Pages left in the cache would have to be dropped by the first direct writes.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	return nil
}
