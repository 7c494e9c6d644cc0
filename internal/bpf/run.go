package bpf

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Run has the kernel run a loaded program on a packet and returns the program's result.
func Run(prog *os.File, packet []byte) (int32, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&packet[0])
	attr := struct {
		fd, result, size, outSize uint32
		in, out                   uint64
		repeat, took              uint32
		ctxIn, ctxOut             uint32
		ctx, ctxTo                uint64
		flags, cpu, batch, pad    uint32
	}{fd: uint32(prog.Fd()), size: uint32(len(packet)), in: uint64(uintptr(unsafe.Pointer(&packet[0])))}
	if _, err := Call(unix.BPF_PROG_TEST_RUN, &attr); err != nil {
		return 0, fmt.Errorf("run program %s on %d bytes: %w", prog.Name(), len(packet), err)
	}
	return int32(attr.result), nil
}
