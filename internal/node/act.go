package node

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/node/history"
	"berth/internal/sys/fault"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
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

// Wait returns how a node's process 1 ended, once it has: at once, if the node does not run.
func (b *Berth) Wait(ctx context.Context, name string) (*history.Exit, error) {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return nil, err
	}
	var first proc.ID
	init, runs := b.LiveInit(name)
	if runs == nil {
		first = init.First()
	}
	l.release()
	if runs == nil {
		pidfd, err := first.Open()
		if err == nil {
			defer pidfd.Close()
			if err := proc.Wait(ctx, pidfd); err != nil {
				return nil, err
			}
		}
		end, err := b.endOf(ctx, name, first)
		if ws, known := proc.Exit(pidfd, first); known && end.Unknown {
			end = history.ExitOf(ws, true, false) // the node is removed, and its journal with it
		}
		return end, err
	}
	if f, err := b.Fate(name); err == nil && f.Last != nil && f.Last.Exit != nil {
		return f.Last.Exit, nil
	}
	return &history.Exit{Unknown: true, Code: 255}, nil // it is gone
}

// Pause stops all processes of a running node where they are, by the freezer of its group; changed is false if they were.
func (b *Berth) Pause(ctx context.Context, name string) (changed bool, err error) {
	return b.setPaused(ctx, name, true)
}

// Unpause lets a paused node go on; changed is false if it was not paused.
func (b *Berth) Unpause(ctx context.Context, name string) (changed bool, err error) {
	return b.setPaused(ctx, name, false)
}

func (b *Berth) setPaused(ctx context.Context, name string, paused bool) (changed bool, err error) {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return false, err
	}
	defer l.release()
	if _, err := b.LiveInit(name); err != nil {
		return false, refuse.Busyf("node %s does not run; berth start %s starts it", name, name)
	}
	j, err := b.Live(name)
	if err != nil || history.IsPaused(j) == paused {
		return false, err
	}
	if paused {
		err = b.freeze(ctx, name, j)
	} else {
		err = b.thaw(name, j)
	}
	if err != nil {
		return false, err
	}
	if claims, err := b.Claims(name); err == nil {
		history.Tell(b.Events(), claims, j, false)
	}
	return true, nil
}

func (b *Berth) freeze(ctx context.Context, name string, j *step.Journal) error {
	cg, err := host.ReadMounted()
	if err == nil {
		err = group.CanFreeze(cg, b.GroupPath(name))
	}
	if err == nil {
		err = b.notePause(name, j, true)
	}
	if err != nil {
		return err
	}
	if err := group.Freeze(ctx, cg, b.GroupPath(name)); err != nil {
		_ = b.thaw(name, j) // else the next command that settles the node does it
		return err
	}
	fault.Point("frozen")
	return nil
}
