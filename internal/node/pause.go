package node

import (
	"context"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/node/history"
	"berth/internal/sys/fault"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

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
