package lab

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// host counts the labs of this process, which share the host's lock.
var host struct {
	sync.Mutex
	labs int
	lock *os.File
}

// enterHost takes the host's lock for the first lab of this process, and removes what killed ones left.
func enterHost(ctx context.Context) (err error) {
	host.Lock()
	defer host.Unlock()
	if host.labs == 0 {
		if host.lock, err = lockHost(ctx); err != nil {
			return err
		}
		removeOld()
	}
	host.labs++
	return nil
}

// leaveHost releases the lock after the last lab.
func leaveHost() {
	host.Lock()
	defer host.Unlock()
	if host.labs--; host.labs == 0 {
		_ = host.lock.Close()
	}
}

// lockHost takes the lock that limits a host to the labs of one process: emulated machines need its CPUs. The lock is released
// when the process ends.
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
