package copier

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSeal: a sealed file cannot be changed, and is sealed also while somebody holds one of its pages, as a kernel does that moves memory about.
func TestSeal(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	memory := os.NewFile(uintptr(fd), "test")
	defer memory.Close()
	text := bytes.Repeat([]byte("x"), 8192)
	if _, err := memory.WriteAt(text, 0); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if n, err := unix.Splice(fd, new(int64), int(w.Fd()), nil, 4096, 0); err != nil || n == 0 { // the pipe holds the first page
		t.Fatal(n, err)
	}
	if err := seal(memory); err != nil {
		t.Fatal(err)
	}
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for _, f := range []*os.File{memory, again} {
		if _, err := f.WriteAt([]byte("y"), 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("write: %v", err)
		}
		if _, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
			t.Errorf("map: %v", err)
		}
		if err := f.Truncate(0); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate: %v", err)
		}
	}
	now := make([]byte, len(text))
	if _, err := memory.ReadAt(now, 0); err != nil || !bytes.Equal(now, text) {
		t.Error("it was changed", err)
	}
}
