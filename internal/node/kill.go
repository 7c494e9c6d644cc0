package node

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"berth/internal/node/history"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// Kill sends a signal to a node's process 1. For SIGKILL it returns when the end is noted. later is true if the node is
// paused, and gets the signal when it goes on.
func (b *Berth) Kill(ctx context.Context, name string, sig unix.Signal) (later bool, err error) {
	l, killed, err := b.lockKilling(ctx, name, sig == unix.SIGKILL)
	if err != nil {
		return false, err
	}
	defer l.release()
	init, err := b.LiveInit(name)
	if err != nil && killed {
		return false, nil
	}
	if err != nil {
		return false, refuse.Busyf("node %s does not run; berth start %s starts it", name, name)
	}
	pidfd, err := init.First().Open()
	if err != nil {
		return false, err
	}
	defer pidfd.Close()
	j, err := b.Live(name)
	if err != nil {
		return false, err
	}
	heard, err := init.Signal(sig)
	switch {
	case err != nil:
		return false, err
	case !heard:
		return false, fmt.Errorf("process 1 of node %s has no handler for %s, and without one the kernel does not deliver it to a process 1; berth kill %s ends the node",
			name, proc.SignalText(sig), name)
	case sig != unix.SIGKILL:
		return history.IsPaused(j), nil
	case history.IsPaused(j):
		if err := b.thaw(name, j); err != nil {
			return false, err
		}
	}
	b.lift(name)
	if err := proc.Wait(ctx, pidfd); err != nil {
		return false, err
	}
	return false, b.settle(ctx, name)
}
