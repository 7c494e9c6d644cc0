// Package watch follows, for the keeper, what can change under running nodes (links, devices, disks, DHCP leases, the process that answers
// names), and mends it: it connects again, renews, and gives back what was unplugged.
package watch

import (
	"context"
	"log/slog"
	"time"
)

// Keeper has the methods of the keeper that the watchers need.
type Keeper struct {
	Log  *slog.Logger
	Work func(f func()) // runs f, which shall not be cut off
}

// settleTime is how long events must be quiet before a watcher looks: they come in bursts.
const settleTime = 300 * time.Millisecond

// poke gives a reason to look, unless there is one already.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// quiet waits for a reason to look, and then until there was none for a while; false if ctx has ended.
func quiet(ctx context.Context, look <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-look:
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-look:
		case <-time.After(settleTime):
			return true
		}
	}
}

// pause waits for some time; false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
