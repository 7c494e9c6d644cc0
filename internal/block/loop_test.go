package block

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newLoop makes a loop device with a file of its own, with partitions allowed, and removes it at the end of the test.
func newLoop(t *testing.T, size int64) string {
	t.Helper()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no loop devices for this user: ", err)
	}
	defer ctl.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	must(t, err)
	defer file.Close()
	must(t, file.Truncate(size))
	for range 20 { // another process may take the free device first
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		must(t, err)
		path := "/dev/loop" + strconv.Itoa(n)
		dev, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_PARTSCAN}}
		if err = unix.IoctlLoopConfigure(int(dev.Fd()), &config); err == nil {
			t.Cleanup(func() {
				defer dev.Close()
				if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
					t.Errorf("detach %s: %v", path, err)
				}
			})
			return path
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			t.Fatalf("configure %s: %v", path, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("no free loop device")
	return ""
}

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
	must(t, err)
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
