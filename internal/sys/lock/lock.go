// Package lock provides locks between processes: they are locks on open files, which end with their holder, however it ends.
package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Open opens the file at path, makes it if needed (not its folder), and waits for its lock until ctx ends. Closing the file
// releases the lock, unless a child process holds a copy of the file: then the lock lasts until that child ends too.
func Open(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := Wait(ctx, f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Share is Open for a lock that several processes may share: it excludes those that Open it, and waits for them.
func Share(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := wait(ctx, f, unix.LOCK_SH); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// OpenDir is Open for a folder that is there.
func OpenDir(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := Wait(ctx, f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Try takes the lock of an open file if no other process has it. It reports whether it did.
func Try(f *os.File) (bool, error) { return try(f, unix.LOCK_EX) }

func try(f *os.File, how int) (bool, error) {
	err := flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return true, nil
}

// Wait waits for the lock of an open file until ctx ends. On an error the caller must close the file.
func Wait(ctx context.Context, f *os.File) error { return wait(ctx, f, unix.LOCK_EX) }

// WaitFor waits for the lock of an open file for some time, and reports whether it got it. Wait may leave a waiter behind when its
// context ends, which keeps a copy of the file open until the lock is free: the wait for a lock in the kernel cannot be cancelled.
// So WaitFor asks again and again; it is for files of file systems that are to be unmounted.
func WaitFor(f *os.File, most time.Duration) (bool, error) {
	for end := time.Now().Add(most); ; time.Sleep(5 * time.Millisecond) {
		if got, err := Try(f); got || err != nil || time.Now().After(end) {
			return got, err
		}
	}
}

func wait(ctx context.Context, f *os.File, how int) error {
	if got, err := try(f, how); got || err != nil {
		return err
	}
	leave, err := waiting.enter(ctx, f, how)
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	// A copy, because flock goes on after ctx has ended: the caller's number may be another file then. The lock
	// belongs to the open file that both share.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		leave()
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	done := make(chan error, 1)
	go func() {
		done <- flock(fd, how)
		unix.Close(fd)
		leave()
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = atWork(ctx)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

func atWork(ctx context.Context) error {
	return fmt.Errorf("another command is at work on it: %w", ctx.Err())
}

// waiting are those of this process who wait for a lock. One of them for each file waits in the kernel, where the wait cannot be cancelled:
// of all that gave up, one thread and one open file are left.
var waiting = queues{of: map[queued]*queue{}}

type queues struct {
	mu sync.Mutex
	of map[queued]*queue
}

type queued struct {
	dev, ino uint64
	how      int
}

type queue struct {
	turn chan struct{} // holds one while a thread waits in the kernel
	all  int           // the number of waiters, in the queue or in the kernel
}

// enter waits until no other thread of this process waits in the kernel for such a lock of the file.
func (q *queues) enter(ctx context.Context, f *os.File, how int) (leave func(), err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	key := queued{st.Dev, st.Ino, how}
	q.mu.Lock()
	one := q.of[key]
	if one == nil {
		one = &queue{turn: make(chan struct{}, 1)}
		q.of[key] = one
	}
	one.all++
	q.mu.Unlock()
	gone := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if one.all--; one.all == 0 {
			delete(q.of, key)
		}
	}
	select {
	case one.turn <- struct{}{}:
		return func() { <-one.turn; gone() }, nil
	case <-ctx.Done():
		gone()
		return nil, atWork(ctx)
	}
}

// Release gives the lock up and closes the file, also where a child process still holds a copy of it.
func Release(f *os.File) {
	_ = flock(int(f.Fd()), unix.LOCK_UN)
	f.Close()
}

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// A visible lock is a lock of another kind (an open file description lock, fcntl(2)): others can ask whether it is held without
// taking it.

// TryVisible takes the visible lock of a file that is open for writing. It reports whether it did.
func TryVisible(f *os.File) (bool, error) {
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return true, nil
}

// Held reports whether another open file holds the visible lock of this one, which is open for writing.
func Held(f *os.File) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, fmt.Errorf("look at the lock of %s: %w", f.Name(), err)
	}
	return l.Type != unix.F_UNLCK, nil
}
