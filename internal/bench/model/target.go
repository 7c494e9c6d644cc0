package model

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/internal/host/block"
	"berth/internal/sys/refuse"
)

// target is the device or file that fio reads and writes.
type target struct {
	file  *os.File
	path  string // path for fio
	title string // name for messages
	size  int64
	queue block.Queue
}

// find opens the device to measure, or an unnamed file on it.
func find(o Options) (*target, error) {
	fi, err := os.Stat(o.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, refuse.NotFoundf("there is no device or folder %s", o.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", o.Path, err)
	}
	switch {
	case fi.IsDir() && o.Destroy:
		return nil, refuse.Invalidf("--destroy-data takes a device; in a folder nothing is lost")
	case fi.IsDir():
		return inFolder(o, o.Path)
	case fi.Mode()&os.ModeDevice == 0 || fi.Mode()&os.ModeCharDevice != 0:
		return nil, refuse.Invalidf("%s is neither a block device nor a folder", o.Path)
	case o.Destroy:
		return onDevice(o)
	}
	dir, err := mountOf(o.Path)
	if err != nil {
		return nil, err
	}
	return inFolder(o, dir)
}

// inFolder makes an unnamed file in dir. It is gone when the last process closes it.
func inFolder(o Options, dir string) (*target, error) {
	d, err := block.Under("/sys", dir)
	if err != nil {
		return nil, err
	}
	q, err := queueOf(d, o.V2)
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("look at %s: %w", dir, err)
	}
	size := min(o.Size, int64(st.Bavail)*st.Bsize/2)
	if size < least {
		return nil, refuse.Cannotf("make room there", "%s has too little space: %d MiB are needed, and twice as much must be free", dir, least>>20)
	}
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make a file in %s: %w", dir, err)
	}
	if err := f.Truncate(size &^ (1<<20 - 1)); err != nil {
		f.Close()
		return nil, fmt.Errorf("make a file in %s: %w", dir, err)
	}
	return &target{f, "/dev/fd/3", "a file in " + dir, size &^ (1<<20 - 1), q}, nil
}

// least is the smallest part of a disk, in bytes, that is measured. A smaller part fits in the disk's cache.
const least = 64 << 20

// onDevice opens a device that nothing uses.
func onDevice(o Options) (*target, error) {
	d, err := block.Resolve("/sys", o.Path)
	if err != nil {
		return nil, err
	}
	q, err := queueOf(d, o.V2)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Stat(o.Path, &st); err != nil {
		return nil, fmt.Errorf("look at %s: %w", o.Path, err)
	}
	if by, used := block.InUse("/proc", "/sys", unix.Major(st.Rdev), unix.Minor(st.Rdev)); used {
		return nil, refuse.Busyf("%s is in use: %s", o.Path, by)
	}
	if used, err := block.Claimed(o.Path); err != nil || used {
		return nil, errors.Join(err, refuse.Busyf("%s is in use: another process has it for itself", o.Path))
	}
	f, err := os.OpenFile(o.Path, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return nil, fmt.Errorf("open the device: %w", err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("measure the size of %s: %w", o.Path, err)
	}
	size = min(o.Size, size) &^ (1<<20 - 1)
	if size < least {
		f.Close()
		return nil, refuse.Cannotf("", "%s is too small: %d MiB are needed", o.Path, least>>20)
	}
	return &target{f, o.Path, o.Path, size, q}, nil
}

// mountOf returns a folder on which a device, or a partition of it, is mounted writable.
func mountOf(path string) (string, error) {
	d, err := block.Resolve("/sys", path)
	if err != nil {
		return "", err
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return "", fmt.Errorf("read mounts: %w", err)
	}
	for _, m := range mounts {
		if m.Root != "/" || m.Major == 0 && m.FSType != "btrfs" || readOnly(m) {
			continue // a mount without a device may hang on a server that does not answer
		}
		under, err := block.Under("/sys", m.Mountpoint)
		if err == nil && under.Number() == d.Number() {
			return m.Mountpoint, nil
		}
	}
	return "", refuse.Cannotf("give a folder on it, or --destroy-data if nothing that it holds is needed",
		"%s is mounted nowhere, so there is no place for a file to measure with", path)
}

func readOnly(m *mountinfo.Info) bool {
	for _, o := range []string{m.Options, m.VFSOptions} {
		if o == "ro" || len(o) > 2 && o[:3] == "ro," {
			return true
		}
	}
	return false
}
