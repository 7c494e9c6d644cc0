package inherit

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// onAll makes a system call, which acts on the calling thread only, on every thread of this process.
func onAll(call, a, b uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall(call, a, b, 0)
	return asError(errno)
}

// freeAffinity gives a thread all CPUs. The kernel leaves out those that its cpuset does not have, which are the group's to say.
func freeAffinity(tid int) (bool, error) {
	var has, all unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &has); err != nil {
		if errors.Is(err, unix.EINVAL) { // more CPUs than the set has room for: the mask cannot be compared
			return false, nil
		}
		return false, err
	}
	all.Fill()
	if err := unix.SchedSetaffinity(tid, &all); err != nil {
		return false, err
	}
	var now unix.CPUSet
	err := unix.SchedGetaffinity(tid, &now)
	return now != has, err
}

// freeScheduler gives a thread the policy SCHED_OTHER.
func freeScheduler(tid int) (bool, error) {
	policy, _, errno := unix.Syscall(unix.SYS_SCHED_GETSCHEDULER, uintptr(tid), 0, 0)
	if errno != 0 || policy == unix.SCHED_NORMAL {
		return false, asError(errno)
	}
	var priority int32
	_, _, errno = unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), unix.SCHED_NORMAL, uintptr(unsafe.Pointer(&priority)))
	return true, asError(errno)
}

func asError(errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// freeNice gives a thread the nice level 0.
func freeNice(tid int) (bool, error) {
	got, err := unix.Getpriority(unix.PRIO_PROCESS, tid) // the system call's own form: 20 minus the level
	if err != nil || got == 20 {
		return false, err
	}
	return true, unix.Setpriority(unix.PRIO_PROCESS, tid, 0)
}

// freeIOPriority gives a thread the I/O priority that follows from its nice level: class none (ioprio_set(2)).
func freeIOPriority(tid int) (bool, error) {
	const process, shift = 1, 13 // include/uapi/linux/ioprio.h
	before, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, process, uintptr(tid), 0)
	if errno != 0 || before>>shift == 0 {
		return false, asError(errno)
	}
	if _, _, errno = unix.Syscall(unix.SYS_IOPRIO_SET, process, uintptr(tid), 0); errno != 0 {
		return false, errno
	}
	now, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, process, uintptr(tid), 0) // the class that follows from the nice level, best-effort
	return now != before, asError(errno)
}

// freeMemoryPolicy gives all threads the policy MPOL_DEFAULT (set_mempolicy(2)).
func freeMemoryPolicy() error {
	var mode int32
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)), 0, 0, 0, 0, 0)
	if errno == unix.ENOSYS || errno == unix.EPERM || errno == 0 && mode == 0 { // a kernel without NUMA; a container that may not ask
		return nil
	}
	if errno != 0 {
		return errno
	}
	return onAll(unix.SYS_SET_MEMPOLICY, 0, 0)
}

// freeTimerSlack gives all threads the kernel's own 50 µs (INIT_TASK in init/init_task.c).
func freeTimerSlack() error {
	const slack = 50_000
	got, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || got == slack || got == 0 { // 0: a real-time thread has none
		return err
	}
	return onAll(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, slack)
}

// freePersonality gives all threads PER_LINUX, without its flags (personality(2)): addresses are random again.
func freePersonality() error {
	const ask = 0xffffffff
	got, _, errno := unix.Syscall(unix.SYS_PERSONALITY, ask, 0, 0)
	if errno != 0 || got == 0 {
		return asError(errno)
	}
	return onAll(unix.SYS_PERSONALITY, 0, 0)
}

// switchOff makes a function that takes off a flag of prctl(2) which a process has for itself and all that it starts.
func switchOff(get, set int) func() error {
	return func() error {
		got, err := unix.PrctlRetInt(get, 0, 0, 0, 0)
		if err != nil || got == 0 {
			return nil //nolint:nilerr // a kernel without
		}
		return unix.Prctl(set, 0, 0, 0, 0)
	}
}

// freeMemoryFailure gives all threads the host's own policy of broken memory (PR_MCE_KILL).
func freeMemoryFailure() error {
	got, err := unix.PrctlRetInt(unix.PR_MCE_KILL_GET, 0, 0, 0, 0)
	if err != nil || got == unix.PR_MCE_KILL_DEFAULT {
		return nil //nolint:nilerr // a kernel without
	}
	return onAll(unix.SYS_PRCTL, unix.PR_MCE_KILL, unix.PR_MCE_KILL_CLEAR)
}

// freeIOFlusher takes off PR_SET_IO_FLUSHER: nodes do not write for the kernel's sake. Without CAP_SYS_RESOURCE nobody can ask for it.
func freeIOFlusher() error {
	got, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0)
	if err != nil || got == 0 {
		return nil //nolint:nilerr // a kernel without, or no right to ask
	}
	return onAll(unix.SYS_PRCTL, unix.PR_SET_IO_FLUSHER, 0)
}

// freeCoredumpFilter makes what a core dump has that of process 1: the kernel's own, which its command line can change.
func freeCoredumpFilter() error {
	const name = "/coredump_filter"
	first, err := os.ReadFile("/proc/1" + name)
	if err != nil || len(first) == 0 {
		return nil //nolint:nilerr // a kernel without core dumps
	}
	own, err := os.ReadFile("/proc/self" + name)
	if err != nil || bytes.Equal(own, first) {
		return err
	}
	return os.WriteFile("/proc/self"+name, []byte("0x"+strings.TrimSpace(string(first))), 0)
}
