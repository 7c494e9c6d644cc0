package node

import (
	"context"
	"time"

	"berth/internal/node/health"
	"berth/internal/node/history"
	"berth/internal/node/keeper"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/proc"
)

// checks are the health checks that the keeper runs.
func (b *Berth) checks(k *keeper.Keeper) *health.Checks {
	return &health.Checks{
		Log: k.Log, Work: k.Work, Events: b.Events(), Of: b.checkOf, Locked: b.readdressed, End: b.endUnhealthy,
		Check: func(name string) health.Result { return health.Run(append(b.Layout.Args(), "check-health", name)) },
		Paused: func(name string, since time.Time) bool {
			j, err := b.Live(name)
			return err == nil && history.PausedSince(j, since)
		},
	}
}

// checkOf returns a node's check, when the node was started, and the file for what is found.
func (b *Berth) checkOf(name string) (check *vnode.Health, began time.Time, file string) {
	s, err := b.Stored(name)
	if err != nil || len(s.Now.Health.Command) == 0 {
		return nil, began, ""
	}
	if j, err := b.Live(name); err == nil {
		began, _ = history.Started(j) // damaged: long ago
	}
	return &s.Now.Health, began, b.Layout.Node(name).Health()
}

// endUnhealthy ends a node as stop does, and notes that it counts as failed. The keeper sees the end, and does what the spec
// asks for then.
func (b *Berth) endUnhealthy(ctx context.Context, name string, first proc.ID) error {
	_, err := b.readdressed(ctx, name, first, func() error {
		j, err := b.Live(name)
		if err != nil {
			return err
		}
		if err := history.SetUnhealthy(j); err != nil {
			return err
		}
		fault.Point("unhealthy noted")
		pidfd, err := runner.FirstProcess(j.Steps()).First().Open()
		if err != nil {
			return nil // it has ended meanwhile
		}
		defer pidfd.Close()
		return b.askToEnd(ctx, name, j, pidfd, OwnGrace, func() {
			if history.IsPaused(j) {
				_ = b.thaw(name, j) // else it is killed
			}
		})
	})
	return err
}
