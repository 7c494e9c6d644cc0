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

// TestOwnEnds: a function that ends its goroutine, as a failed test does, is waited for no longer.
func TestOwnEnds(t *testing.T) {
	if err := Own(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("a function that did not return succeeded")
	}
}
