package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Lock takes the host-wide lock in the file path and waits for it until ctx ends. Closing the file releases it, unless
// a child process holds a copy of the file: then the lock lasts until that child ends too.
//
// The steps of this package take the lock themselves, for about a millisecond each: do not hold it while they run.
func Lock(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("take the host lock: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("take the host lock: %w", err)
	}
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("take the host lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for the host lock %s: %w", path, ctx.Err())
		case <-time.After(wait):
		}
	}
}
