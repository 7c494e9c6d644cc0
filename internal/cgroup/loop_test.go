package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// newLoop makes a loop device with a file of its own, and removes it at the end of the test.
func newLoop(t *testing.T) string {
	t.Helper()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no loop devices for this user: ", err)
	}
	defer ctl.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	must(t, err)
	defer file.Close()
	must(t, file.Truncate(16<<20))
	for range 20 { // another process may take the free device first
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		must(t, err)
		path := "/dev/loop" + strconv.Itoa(n)
		dev, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{Fd: uint32(file.Fd())})
		if err == nil {
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
	}
	t.Fatal("no free loop device")
	return ""
}
