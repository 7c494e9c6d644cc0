// Package thread runs a function on its own OS thread, which may enter other namespaces and ends with the function.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Own runs f on its own OS thread, which ends with f. It is never the process's main thread, because that one cannot
// end before the process: it would keep the namespaces that f entered, and /proc/self would show them.
func Own(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			done <- Own(f) // runs on another thread: this one is locked and waits
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}
