package file

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// CheckOutput refuses a name that Output does not write to (kind Invalid if it is neither a file nor a device; Cannot if another user's device, FIFO
// or link is there): for commands that do something before they write.
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
	case !is.Mode().IsRegular():
		f, err := special(name)
		if err != nil {
			return err
		}
		return f.Close()
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
		return toSpecial(name, write)
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

// toSpecial writes to a device or FIFO that is there.
func toSpecial(name string, write func(*os.File) error) error {
	at, err := special(name)
	if err != nil {
		return err
	}
	defer at.Close()
	f, err := os.OpenFile(descriptor(at), os.O_WRONLY, 0) // what was looked at: the name may lead elsewhere now
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return errors.Join(write(f), f.Close())
}

// special finds the device or FIFO that a name leads to (O_PATH: the open of a FIFO would wait for a reader). One of another user is refused, and so is
// one that another user's link leads to: where the folder is that user's, the user may have put it there, to read what is written, or to have
// it written to a disk.
func special(name string) (*os.File, error) {
	f, err := os.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	is, err := f.Stat()
	if err == nil && is.Mode()&fs.ModeSymlink != 0 && ours(is) {
		f.Close()
		if f, err = os.OpenFile(name, unix.O_PATH, 0); err != nil {
			return nil, err
		}
		is, err = f.Stat()
	}
	switch {
	case err != nil:
	case is.Mode().IsRegular():
		err = refuse.Busyf("write %s: it was a device or a FIFO and is a file now", name)
	case !ours(is):
		err = refuse.Cannotf("name another file", "write %s: it is no file but a FIFO, device or link of user %d, who may read what is written there", name, is.Sys().(*syscall.Stat_t).Uid)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ours reports whether something is root's, the caller's, or what the caller was given as standard input, output or error: a terminal or a pipe of
// another user.
func ours(is fs.FileInfo) bool {
	if of := is.Sys().(*syscall.Stat_t).Uid; of == 0 || of == uint32(os.Geteuid()) {
		return true
	}
	return slices.ContainsFunc([]*os.File{os.Stdin, os.Stdout, os.Stderr}, func(f *os.File) bool {
		given, err := f.Stat()
		return err == nil && os.SameFile(is, given)
	})
}

// descriptor is a name of an open file, also of one that has no other.
func descriptor(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

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
		err := unix.Linkat(unix.AT_FDCWD, descriptor(f), unix.AT_FDCWD, temp, unix.AT_SYMLINK_FOLLOW)
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			return err
		}
	}
	return os.Rename(temp, name)
}
