package watch

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"berth/internal/network/address"
	"berth/internal/sys/proc"
)

// Announced announces the addresses of a node again after its start.
type Announced struct {
	Keeper
	Of func(node string) []address.Announcer
}

// announceAfter is how long after a node's start, or after that of the keeper, its addresses are announced again: RFC 5227, 2.3, asks
// for a second announcement after two seconds; a bridge or a switch with STP takes frames after half a minute.
var announceAfter = []time.Duration{2 * time.Second, 35 * time.Second}

// Watch implements keeper.Watcher.
func (w *Announced) Watch(ctx context.Context, node string, _ proc.ID) {
	for _, a := range w.Of(node) {
		go func() {
			waited := time.Duration(0)
			for _, after := range announceAfter {
				if !pause(ctx, after-waited) {
					return
				}
				waited = after
				if err := a.AnnounceAgain(ctx); err != nil && !errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil { // ErrNotExist: it ends
					w.Log.Warn("could not announce addresses again", "node", node, "err", err)
				}
			}
		}()
	}
}
