package thread

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwn calls Own often enough that the scheduler would choose the main thread too.
func TestOwn(t *testing.T) {
	for range 500 {
		_ = Own(func() error {
			if unix.Gettid() == unix.Getpid() {
				t.Error("on the main thread")
			}
			runtime.Gosched()
			return nil
		})
	}
}
