package network

import (
	"net/netip"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/sys/bpf"
	"berth/test/testkit"
)

// TestClass: the kernel finds the class of a frame by the node's address, or by its link-local one that was made of a MAC.
func TestClass(t *testing.T) {
	testkit.NeedsRoot(t)
	nodes, err := bpf.NewMap("berth_test", 16, 8, 10)
	testkit.Must(t, err)
	defer nodes.Close()
	for address, class := range map[string]uint32{"2001:db8::7": 1, "fe80::5eff:fe10:1": 2, "fe80::1": 3, "192.0.2.1": 4} {
		testkit.Must(t, nodes.Put(key(netip.MustParseAddr(address)), value(class, 0)))
	}
	prog, err := load("berth_reads", nodes, target4, target6, readClass, false)
	testkit.Must(t, err)
	defer prog.Close()
	for address, want := range map[string]uint32{
		"2001:db8::7": 1, "2001:db8::8": noMatch, "fe80::5eff:fe10:1": 2, "2001:db8:9:9:0:5eff:fe10:1": 2, "fe80::1": 3, "2001:db8::1": noMatch, "192.0.2.1": 4, "192.0.2.2": noMatch,
	} {
		a := netip.MustParseAddr(address)
		frame := make([]byte, 400)
		frame[frameType], frame[frameType+1] = unix.ETH_P_IP>>8, unix.ETH_P_IP&0xff
		at := target4
		if a.Is6() {
			frame[frameType], frame[frameType+1] = unix.ETH_P_IPV6>>8, unix.ETH_P_IPV6&0xff
			at = target6
		}
		copy(frame[at:], a.AsSlice())
		if got := runOn(t, prog, frame); got != want {
			t.Errorf("%s has class %d, want %d", address, got, want)
		}
	}
}

// runOn has the kernel run a program on a frame.
func runOn(t *testing.T, prog *os.File, frame []byte) uint32 {
	t.Helper()
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&frame[0])
	attr := struct { // union bpf_attr, test (include/uapi/linux/bpf.h)
		fd, result, size, outSize uint32
		in, out                   uint64
		repeat, took              uint32
	}{fd: uint32(prog.Fd()), size: uint32(len(frame)), in: uint64(uintptr(unsafe.Pointer(&frame[0])))}
	_, err := bpf.Call(unix.BPF_PROG_TEST_RUN, &attr)
	testkit.Must(t, err)
	return attr.result
}
