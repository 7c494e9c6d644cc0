package file

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// CheckOutput refuses a name that Output cannot write to (kind Invalid if it is neither a file nor a device): for commands that do
// something before they write.
func CheckOutput(name string) error {
	is, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat(filepath.Dir(name))
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("write %s: there is no folder %s", name, filepath.Dir(name))
		}
		return err
	}
	switch {
	case err != nil:
		return err
	case is.IsDir():
		return refuse.Invalidf("write %s: it is a folder; name a file", name)
	case is.Mode()&fs.ModeSocket != 0:
		return refuse.Invalidf("write %s: it is a socket; name a file", name)
	}
	return nil
}

// Output writes the output of a command to the file that its user names. A device or FIFO of this name, also one that a symbolic link leads
// to, is written to: nothing comes in its place. Else write gets a file without a name, which gets this one, with this mode less the umask,
// when write has succeeded, in the place of a file or link that has it, and the disk has it when Output returns. A process that is killed
// meanwhile leaves nothing.
func Output(name string, mode fs.FileMode, write func(*os.File) error) error {
	if err := CheckOutput(name); err != nil {
		return err
	}
	if is, err := os.Stat(name); err == nil && !is.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	}
	f, temp, err := unnamed(name, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer f.Close()
	err = write(f)
	if err == nil {
		err = f.Sync()
		if err == nil {
			err = place(f, temp, name)
		}
		if err == nil {
			if err = SyncDir(filepath.Dir(name)); errors.Is(err, fs.ErrPermission) { // a folder that this user may write to, and not list
				err = nil
			}
			return err
		}
		err = fmt.Errorf("write %s: %w", name, err)
	}
	_ = os.Remove(temp)
	return err
}

// unnamed opens a new file for name, and returns the name that it has meanwhile, or gets for the moment before it has its own: not all file
// systems can have a file without one (EOPNOTSUPP; kernels before 3.11: EISDIR).
func unnamed(name string, mode fs.FileMode) (f *os.File, temp string, err error) {
	dir := filepath.Dir(name)
	temp = filepath.Join(dir, ".berth-"+strconv.FormatUint(rand.Uint64(), 36))
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, uint32(mode.Perm()))
	if err == nil {
		return os.NewFile(uintptr(fd), name), temp, nil
	}
	f, err = os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	return f, temp, err
}

// place gives an unnamed file its name. link(2) does not replace a file, and so the file gets another name first. With that it is synced:
// btrfs skips what has no name (btrfs_log_inode_parent in fs/btrfs/tree-log.c), and after a power cut it would be an empty file.
func place(f *os.File, temp, name string) error {
	if _, err := os.Lstat(temp); errors.Is(err, fs.ErrNotExist) {
		err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.AT_FDCWD, temp, unix.AT_SYMLINK_FOLLOW)
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			return err
		}
	}
	return os.Rename(temp, name)
}
