package watch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/sys/proc"
)

// VFs gives virtual functions back to running nodes when they come back to the host, as when a driver is reloaded. It follows the
// host's links only while there are such nodes.
type VFs struct {
	Keeper
	Has      func(node string) bool                                 // it has virtual functions
	Restore  func(context.Context) (did []string, err error)        // makes those of the host again that are gone
	Reattach func(ctx context.Context, node string) (string, error) // connects interfaces that have lost their connection

	mu    sync.Mutex
	nodes map[string]int // how often each is watched: a new start may overlap the end of the last
	look  chan struct{}  // a reason to look
	end   context.CancelFunc
}

// Watch implements keeper.Watcher.
func (w *VFs) Watch(ctx context.Context, node string, _ proc.ID) {
	if !w.Has(node) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.nodes) == 0 {
		w.nodes, w.look = map[string]int{}, make(chan struct{}, 1)
		var looking context.Context
		looking, w.end = context.WithCancel(context.WithoutCancel(ctx))
		go w.follow(looking, w.look)
		go w.lookAfter(looking, w.look)
	}
	w.nodes[node]++
	poke(w.look)
	context.AfterFunc(ctx, func() { w.letGo(node) })
}

func (w *VFs) letGo(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes[node]--; w.nodes[node] == 0 {
		delete(w.nodes, node)
	}
	if len(w.nodes) == 0 {
		w.end()
	}
}

// follow pokes look whenever the kernel tells of an adapter's link on the host.
func (w *VFs) follow(ctx context.Context, look chan<- struct{}) {
	for ctx.Err() == nil {
		events := make(chan netlink.LinkUpdate, 64)
		if err := netlink.LinkSubscribe(events, ctx.Done()); err != nil {
			w.Log.Error("follow the host's links", "err", err)
		} else {
			for e := range events { // until the kernel lost some: its buffer was full
				if e.Header.Type == unix.RTM_NEWLINK && e.Attrs().ParentDevBus == "pci" {
					poke(look)
				}
			}
		}
		poke(look)
		pause(ctx, time.Second)
	}
}

// lookAfter repairs what can be repaired after each burst of events.
func (w *VFs) lookAfter(ctx context.Context, look <-chan struct{}) {
	for quiet(ctx, look) {
		w.Work(func() { w.mend(ctx) })
	}
}

func (w *VFs) mend(ctx context.Context) {
	did, err := w.Restore(ctx)
	if err != nil {
		w.Log.Error("make virtual functions again", "err", err)
	}
	for _, d := range did {
		w.Log.Info(d)
	}
	w.mu.Lock()
	nodes := slices.Collect(maps.Keys(w.nodes))
	w.mu.Unlock()
	for _, node := range nodes {
		did, err := w.Reattach(ctx, node)
		if err != nil {
			w.Log.Error("give a node its virtual function back", "node", node, "err", err)
		}
		if did != "" {
			w.Log.Info(did, "node", node)
		}
	}
}
