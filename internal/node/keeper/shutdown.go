package keeper

import (
	"context"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"berth/internal/host"
	"berth/internal/host/group"
)

// leaveUnit makes the keeper outlive the service or session in which the first node was started, and gives it a name
// in ps and top: it was started as /proc/self/exe.
func (k *Keeper) leaveUnit() {
	h, err := host.ReadMounted()
	if err == nil {
		err = group.Leave(h)
	}
	if err != nil {
		k.Log.Warn("the keeper ends with the service that started it", "err", err)
	}
	_ = os.WriteFile("/proc/self/comm", []byte("berth-keeper"), 0) // a nicety
}

// hostEnds reports whether systemd has ended all its units and now ends every process that is left: process 1 is
// systemd-shutdown by then. It sends SIGTERM, which most inits of nodes ignore, and waits 90 s before it kills.
func hostEnds() bool {
	comm, err := os.ReadFile("/proc/1/comm")
	return err == nil && strings.TrimSpace(string(comm)) == "systemd-shutdow" // 15 bytes, as the kernel cuts it
}

// graceAtEnd is the time that nodes get when the host shuts down; systemd waits longer.
const graceAtEnd = 30 * time.Second

// stopNodes stops all nodes at once, each by the signal that its init understands. Those that have ended by systemd's
// own signal are cleaned up after.
func (k *Keeper) stopNodes(ctx context.Context) {
	k.mu.Lock()
	nodes := maps.Clone(k.watched)
	k.mu.Unlock()
	var stopped sync.WaitGroup
	for name, w := range nodes {
		stopped.Go(func() {
			var err error
			select {
			case <-w.ended:
				_, err = k.nodes.Ended(ctx, name, w.pid, w.Ending)
			default:
				err = k.nodes.Stop(ctx, name, graceAtEnd)
			}
			if err != nil {
				k.Log.Error("stop node before the host ends", "node", name, "err", err)
			}
		})
	}
	stopped.Wait()
}
