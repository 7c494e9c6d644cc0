// Package loop makes loop devices for tests, and for tools that measure on one.
package loop

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// New makes a loop device with a file of size bytes in dir, which is unlinked before New returns.
func New(dir string, size int64) (*os.File, error) {
	back, err := os.CreateTemp(dir, "loop-*")
	if err != nil {
		return nil, fmt.Errorf("make the file of the loop device: %w", err)
	}
	defer back.Close()
	defer os.Remove(back.Name())
	if err := unix.Fallocate(int(back.Fd()), 0, 0, size); err != nil {
		return nil, fmt.Errorf("make the file of the loop device: %w", err)
	}
	return on(back, 0, 0)
}

// on makes a loop device with a file, with more flags, and with sectors of so many bytes; 0: those of the kernel's choice. Partitions are allowed. The kernel detaches the device when its last
// descriptor is closed (LO_FLAGS_AUTOCLEAR), also after a kill.
func on(back *os.File, flags, sector uint32) (*os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("ask for a loop device: %w", err)
	}
	defer ctl.Close()
	config := unix.LoopConfig{Fd: uint32(back.Fd()), Size: sector, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_PARTSCAN | flags}}
	for {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("ask for a loop device: %w", err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("open the loop device: %w", err)
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) { // EBUSY: another process took this device
			return nil, fmt.Errorf("set up the loop device: %w", err)
		}
	}
}

// ForTest returns the path of a loop device that lasts as long as the test.
func ForTest(t *testing.T, size int64) string { t.Helper(); return OfSectors(t, size, 0) }

// OfSectors is ForTest of a disk with sectors of so many bytes; 0: those of the kernel's choice.
func OfSectors(t *testing.T, size int64, sector uint32) string {
	t.Helper()
	back, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	if err := unix.Fallocate(int(back.Fd()), 0, 0, size); err != nil {
		t.Fatal(err)
	}
	return attached(t, back, 0, sector)
}

// attached returns the path of a loop device with a file, as on makes it, which lasts as long as the test.
func attached(t *testing.T, back *os.File, flags, sector uint32) string {
	t.Helper()
	if f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0); err != nil {
		t.Skip("no loop devices for this user: ", err)
	} else {
		f.Close()
	}
	dev, err := on(back, flags, sector)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("detach %s: %v", dev.Name(), err)
		}
	})
	return dev.Name()
}
