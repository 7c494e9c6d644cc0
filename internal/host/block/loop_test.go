package block

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// addPartition tells the kernel of a partition. This also works where the kernel reads no partition tables.
func addPartition(t *testing.T, disk string, number int, start, size int64) string {
	t.Helper()
	const blkpg, add, del = 0x1269, 1, 2 // linux/blkpg.h
	type partition struct {
		start, length int64
		number        int32
		_             [128]byte // names
	}
	type arg struct {
		op, flags, size int32
		data            *partition
	}
	dev, err := os.OpenFile(disk, os.O_RDWR, 0)
	testkit.Must(t, err)
	call := func(op int32) error {
		p := &partition{start: start, length: size, number: int32(number)}
		a := &arg{op: op, size: int32(unsafe.Sizeof(*p)), data: p}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), blkpg, uintptr(unsafe.Pointer(a)))
		runtime.KeepAlive(p)
		if errno != 0 {
			return errno
		}
		return nil
	}
	if err := call(add); err != nil {
		dev.Close()
		t.Fatalf("add a partition to %s: %v", disk, err)
	}
	t.Cleanup(func() {
		defer dev.Close()
		if err := call(del); err != nil {
			t.Errorf("remove the partition of %s: %v", disk, err)
		}
	})
	return disk + "p" + strconv.Itoa(number)
}
