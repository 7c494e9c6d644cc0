package node

import (
	"context"

	"berth/internal/node/history"
	"berth/internal/sys/proc"
)

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
