package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// scratch is a file system in memory that is mounted nowhere. It vanishes with this process, so nothing is left to remove.
// Device nodes on it can be opened.
type scratch struct {
	dir *os.File
}

// newScratch makes a scratch with room for so many bytes beside what the runtime writes.
func newScratch(more int) (*scratch, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file system in memory: %w", err)
	}
	defer unix.Close(fs)
	err = errors.Join(unix.FsconfigSetString(fs, "size", strconv.Itoa(1<<20+more)), unix.FsconfigSetString(fs, "mode", "0711"), unix.FsconfigCreate(fs))
	if err != nil {
		return nil, fmt.Errorf("make a file system in memory: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file system in memory: %w", err)
	}
	return &scratch{os.NewFile(uintptr(fd), "scratch")}, nil
}

// path returns the path by which other processes reach a file of the scratch while this process lives.
func (s *scratch) path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.dir.Fd()), name)
}

func (s *scratch) close() { s.dir.Close() }

// makeNull makes a null device that belongs to the host's id owner, and opens it.
func makeNull(path string, owner int) (*os.File, error) {
	err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
	if err == nil {
		err = errors.Join(os.Chown(path, owner, owner), os.Chmod(path, 0o666))
	}
	if err != nil {
		return nil, fmt.Errorf("make the node's null device: %w", err)
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}
