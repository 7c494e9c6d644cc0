package agent

import (
	"context"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// say tells systemd how the agent is, where systemd started it.
func (a *Agent) say(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		a.log.Warn("tell systemd", "state", state, "err", err)
	}
}

// watchdog tells systemd that the agent lives, as often as its unit wants it, until ctx ends. It takes the locks that all
// answers take: an agent that hangs is killed, and started anew.
func (a *Agent) watchdog(ctx context.Context) {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return
	}
	tick := time.NewTicker(every / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		a.mu.Lock()
		a.view.mu.Lock()
		a.view.mu.Unlock() //nolint:staticcheck // it could be taken
		a.mu.Unlock()
		a.say(daemon.SdNotifyWatchdog)
	}
}
