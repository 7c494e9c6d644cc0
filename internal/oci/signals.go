package oci

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
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
		if err := resetSignal(signal); err != nil {
			return fmt.Errorf("reset signal %d: %w", signal, err)
		}
	}
	return nil
}

func resetSignal(signal uintptr) error {
	var was sigaction
	if err := setAction(signal, nil, &was); err != nil || was.handler != handlerIgnore {
		return err
	}
	return setAction(signal, &sigaction{handler: handlerDefault}, nil)
}

func setAction(signal uintptr, act, was *sigaction) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(was)), unsafe.Sizeof(was.mask), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
