package proc

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The kernel's encoding of an I/O priority (include/uapi/linux/ioprio.h): a class, and a level in the class.
const (
	ioprioWhoProcess = 1
	ioprioShift      = 13
	ioprioIdle       = 3
)

// IOIdle reports whether the requests of a process wait until no other process has any: class idle of ioprio_set(2), which the
// schedulers mq-deadline and BFQ honour.
func IOIdle(pid int) (bool, error) {
	prio, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioprioWhoProcess, uintptr(pid), 0)
	if errno != 0 {
		return false, fmt.Errorf("read the I/O priority of process %d: %w", pid, errno)
	}
	return prio>>ioprioShift == ioprioIdle, nil
}

// SetIOIdle gives all threads of a process class idle. Threads that they start inherit it. pid 0 means only this thread.
func SetIOIdle(pid int) error {
	threads := []int{pid}
	if pid != 0 {
		entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
		if err != nil {
			return fmt.Errorf("lower the I/O priority of process %d: %w", pid, err)
		}
		for _, e := range entries {
			if tid, err := strconv.Atoi(e.Name()); err == nil && tid != pid {
				threads = append(threads, tid)
			}
		}
	}
	for _, tid := range threads {
		_, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioIdle<<ioprioShift)
		if errno != 0 && errno != unix.ESRCH {
			return fmt.Errorf("lower the I/O priority of process %d: %w", pid, errno)
		}
	}
	return nil
}
