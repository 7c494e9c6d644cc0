// Package thread runs a function on an OS thread of its own, which ends with it: one that may enter other namespaces.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Own runs f on an OS thread of its own, which ends with it. It is never the process's main thread, because that one
// cannot end before the process does: it would hold the namespaces that f entered, and /proc/self would show them.
func Own(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			done <- Own(f) // on another thread, as this one waits
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}
