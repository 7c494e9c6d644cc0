package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/step"
)

// lock is a node's lock, held by flock on a file. The runtime inherits it while it works for the holder, so that a
// killed command leaves the node locked until its runtime has ended too.
type lock struct {
	f *os.File
}

// lock waits for the node's lock. The file is removed with the node; whoever locked a removed file tries again.
func (b *Berth) lock(ctx context.Context, name string) (*lock, error) {
	return b.lockWhile(ctx, name, func() bool { return true })
}

// lockThere is lock for those who do not make nodes: it is nil, without an error, if the node is gone, and makes no file
// then that somebody would have to remove.
func (b *Berth) lockThere(ctx context.Context, name string) (*lock, error) {
	return b.lockWhile(ctx, name, func() bool {
		_, lock := os.Lstat(b.Layout.Lock(name))
		_, lib := os.Lstat(b.Layout.Node(name).Lib) // a reboot takes the locks of nodes that stay
		return lock == nil || lib == nil
	})
}

func (b *Berth) lockWhile(ctx context.Context, name string, wanted func() bool) (*lock, error) {
	path := b.Layout.Lock(name)
	for {
		if !wanted() {
			return nil, nil
		}
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			if err := b.makeDirs(); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lock node %s: %w", name, err)
		}
		if err := flock(ctx, f); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock node %s: %w", name, err)
		}
		var held, there unix.Stat_t
		if unix.Fstat(int(f.Fd()), &held) == nil && unix.Stat(path, &there) == nil && held.Ino == there.Ino {
			step.Fault("locked")
			return &lock{f: f}, nil
		}
		f.Close()
	}
}

func (l *lock) release() {
	_ = unix.Flock(int(l.f.Fd()), unix.LOCK_UN)
	l.f.Close()
}

// remove ends the lock of a node that is gone.
func (l *lock) remove() {
	_ = os.Remove(l.f.Name())
	step.Fault("lock removed")
	l.release()
}

// flock waits for a lock, or for the context.
func flock(ctx context.Context, f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	got := make(chan error, 1)
	go func() {
		for {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
			if !errors.Is(err, unix.EINTR) {
				got <- err
				return
			}
		}
	}()
	select {
	case err := <-got:
		return err
	case <-ctx.Done():
		return fmt.Errorf("another command is at work on it: %w", ctx.Err())
	}
}
