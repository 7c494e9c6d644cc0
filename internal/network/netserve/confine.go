package netserve

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/sys/seccomp"
)

// user is the id of the process's user and group: one below the ranges of nodes (package ids), which no other process has.
const user = 0x3fffffff

// confine takes this process out of the unit that started it, and gives up root's rights for good. It has not received anything
// yet. The threads have no_new_privs from the starter.
func confine() error {
	_ = os.WriteFile("/proc/self/comm", []byte("berth-netserve"), 0) // a nicety, for ps and top
	if h, err := host.ReadMounted(); err != nil || group.Leave(h) != nil {
		fmt.Fprintln(os.Stderr, "berth netserve ends with the service that started it")
	}
	debug.SetGCPercent(100) // it stays: memory counts for more than time
	debug.SetMemoryLimit(64 << 20)
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &most); err != nil {
		return err
	}
	most.Max = min(most.Max, 16384)
	most.Cur = most.Max
	if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, (*syscall.Rlimit)(&most)); err != nil {
		return err
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(user, user, user), syscall.Setresuid(user, user, user)); err != nil {
		return err
	}
	if nnp, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || nnp != 1 {
		return errors.New("no_new_privs is not set")
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	return seccomp.Filter{Network: true}.Process()
}
