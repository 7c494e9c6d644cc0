package mounts

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mostCPUs is how many CPUs a unix.CPUSet holds.
const mostCPUs = 1024

// unshareNewer makes a mount namespace for this thread that the process's own namespace can pin.
//
// The kernel pins only a namespace with a greater number than that in which it is pinned, so that two cannot keep each other
// (mnt_ns_loop in fs/namespace.c). Since Linux 6.18 each CPU numbers those that it makes from a batch of its own, and a younger
// namespace may have the smaller number. On the CPU that made the process's namespace it never has.
func unshareNewer() error {
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("ask which CPUs this thread may use: %w", err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	own := mountNS("/proc/self/ns/mnt")
	for cpu := 0; ; cpu++ {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
		if own == 0 || mountNS("/proc/thread-self/ns/mnt") > own {
			return nil
		}
		for cpu < mostCPUs && !before.IsSet(cpu) {
			cpu++
		}
		one.Zero()
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("make a mount namespace: no CPU gives it a number that can be pinned")
		} else if err != nil {
			return fmt.Errorf("use CPU %d: %w", cpu, err)
		}
	}
}

// mountNS returns the number of a mount namespace; 0: the kernel does not tell (before Linux 6.11, whose numbers grow with time).
func mountNS(path string) (id uint64) {
	const getID = 0x8008b705 // NS_GET_MNTNS_ID, _IOR(0xb7, 0x5, __u64)
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), getID, uintptr(unsafe.Pointer(&id))); errno != 0 {
		return 0
	}
	return id
}
