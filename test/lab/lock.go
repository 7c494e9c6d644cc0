package lab

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockHost takes the lock that limits a host to one lab: two emulated machines already need two CPUs. The lock is released when
// the process ends.
func lockHost(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile("/run/berth-lab.lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the host's lab: %w", err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return f, nil
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("another lab runs on this host: %w", ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
