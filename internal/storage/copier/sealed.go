package copier

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
)

// sealed returns a copy of this program in memory that cannot be changed. Only its owner, the host's root, may read it: the kernel
// marks a process whose program its user may not read as one that must not be dumped or traced (would_dump in fs/exec.c).
func sealed() (*os.File, error) {
	self, err := os.Open(fork.Berth())
	if err != nil {
		return nil, fmt.Errorf("copy this program: %w", err)
	}
	defer self.Close()
	fd, err := unix.MemfdCreate("berth-copier", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 each memfd may be executed
		fd, err = unix.MemfdCreate("berth-copier", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, refuse.Cannotf("allow programs in memory: sysctl vm.memfd_noexec below 2", "copy this program: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("copy this program: %w", err)
	}
	memory := os.NewFile(uintptr(fd), "berth-copier")
	if _, err = io.Copy(memory, self); err == nil {
		err = memory.Chmod(0o711)
	}
	if err == nil {
		err = seal(memory)
	}
	if err != nil {
		memory.Close()
		return nil, fmt.Errorf("copy this program: %w", err)
	}
	// A file that is open for writing cannot be executed (ETXTBSY), so it is opened anew.
	program, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", memory.Fd()))
	memory.Close()
	if err != nil {
		return nil, fmt.Errorf("copy this program: %w", err)
	}
	return program, nil
}

// seal makes a file in memory unchangeable. F_SEAL_WRITE waits at most 0.2 s for users of its pages, such as a kernel that moves memory
// about, and then fails with EBUSY (memfd_wait_for_pins in mm/memfd.c). F_SEAL_FUTURE_WRITE does not wait; without mappings it forbids the
// same.
func seal(memory *os.File) error {
	const size = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	_, err := unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, size|unix.F_SEAL_FUTURE_WRITE)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.1
		_, err = unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, size|unix.F_SEAL_WRITE)
	}
	return err
}
