package oci

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/sys/inherit"
)

// The C library reserves these two signals. Its sigaction refuses them, so neither runtime can reset them, and a caller that
// ignores them (some start their children so) would pass that on to the node.
const firstReserved, lastReserved = 32, 33

// sigaction is the kernel's struct sigaction (uapi asm-generic/signal.h), not the C library's.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

const (
	handlerDefault = 0 // SIG_DFL
	handlerIgnore  = 1 // SIG_IGN
)

// resetSignals sets the reserved signals of this process, and so of the runtime that it starts, to their default if they
// are ignored. It calls the kernel directly.
func resetSignals() error {
	for signal := uintptr(firstReserved); signal <= lastReserved; signal++ {
		var was sigaction
		err := setAction(signal, nil, &was)
		if err == nil && was.handler == handlerIgnore {
			err = setAction(signal, &sigaction{handler: handlerDefault}, nil)
		}
		if err != nil {
			return fmt.Errorf("reset signal %d: %w", signal, err)
		}
	}
	return nil
}

func setAction(signal uintptr, act, was *sigaction) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(was)), unsafe.Sizeof(was.mask), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// leaveHalf lowers two soft limits of this process, which the runtime inherits, to half of the hard limits. The kernel
// charges pending signals (also POSIX timers) and message queues in a user namespace to its creator, the host's root, and
// takes the creator's soft limit as the bound for all that root's namespaces have together (set_userns_rlimit_max in
// kernel/user_namespace.c). So all nodes together stop at half, and the other half remains for the host's own services.
// The hard limits stay: a spec may ask for more for a process.
var leaveHalf = sync.OnceValue(func() error {
	for _, what := range []int{unix.RLIMIT_SIGPENDING, unix.RLIMIT_MSGQUEUE} {
		var l unix.Rlimit
		if err := unix.Getrlimit(what, &l); err != nil {
			return fmt.Errorf("read limit %d: %w", what, err)
		}
		if l.Cur <= l.Max/2 {
			continue
		}
		l.Cur = l.Max / 2
		if err := unix.Setrlimit(what, &l); err != nil {
			return fmt.Errorf("lower limit %d: %w", what, err)
		}
	}
	return nil
})

// withFiles adds the limit of open files that a process of a node has if its spec has none. All other limits it has from the process that
// starts it (inherit.Free).
func withFiles(limits []specs.POSIXRlimit) []specs.POSIXRlimit {
	const files = "RLIMIT_NOFILE"
	if slices.ContainsFunc(limits, func(l specs.POSIXRlimit) bool { return l.Type == files }) {
		return limits
	}
	most := inherit.NodeFiles()
	if most == 0 {
		return limits
	}
	return append(slices.Clip(limits), specs.POSIXRlimit{Type: files, Soft: most, Hard: most})
}
