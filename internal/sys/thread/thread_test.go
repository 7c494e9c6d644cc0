package thread

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwn calls Own so often that the scheduler would also choose the main thread.
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
