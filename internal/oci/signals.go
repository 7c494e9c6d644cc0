package oci

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The C library keeps these two to itself: its sigaction refuses them, so neither runtime can give them back their default,
// and a caller that ignores them (some start their children so) would pass that on to the node.
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

// resetSignals makes this process, and so the runtime that it starts, not ignore what only the kernel can be told about.
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
