// Package thread runs a function on its own OS thread, which may enter other namespaces and ends with the function.
package thread

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// Own runs f on its own OS thread, which ends with f. It is never the process's main thread, because that one cannot
// end before the process: it would keep the namespaces that f entered, and /proc/self would show them.
func Own(f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer close(done)      // also where f ends the goroutine, as t.FailNow does
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			done <- Own(f) // runs on another thread: this one is locked and waits
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	err, returned := <-done
	if !returned {
		return errors.New("the function on a thread of its own did not return")
	}
	return err
}
