package watch

import (
	"context"
	"maps"
	"slices"
	"sync"

	"berth/internal/network/netserve"
	"berth/internal/sys/proc"
)

// Names keeps the process running that serves the names and ports of nodes. It follows that process only while nodes need it.
type Names struct {
	Keeper
	Places netserve.Places
	Has    func(node string) bool                                       // it needs the process
	Again  func(ctx context.Context, node string) (did bool, err error) // tells the process of the node once more

	mu    sync.Mutex
	nodes map[string]int // how often each is watched: a new start may overlap the end of the last
	end   context.CancelFunc

	atWork sync.Map // nodes
}

// Watch implements keeper.Watcher.
func (w *Names) Watch(ctx context.Context, node string, _ proc.ID) {
	if !w.Has(node) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.nodes) == 0 {
		w.nodes = map[string]int{}
		var looking context.Context
		looking, w.end = context.WithCancel(context.WithoutCancel(ctx))
		go w.Places.Watch(looking, w.all, w.again)
	} else {
		go w.look(ctx, node)
	}
	w.nodes[node]++
	context.AfterFunc(ctx, func() { w.letGo(node) })
}

// look serves a node that is not served. Where nodes are followed one after the other, by a keeper that was just started, the
// process may run again, for the first of them, before the last is known here.
func (w *Names) look(ctx context.Context, node string) {
	lacking, err := w.Places.Lacks([]string{node})
	if err == nil {
		err = w.again(ctx, lacking)
	}
	if err != nil {
		w.Log.Error("look whether names and ports of a node are served", "node", node, "err", err)
	}
}

func (w *Names) letGo(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes[node]--; w.nodes[node] == 0 {
		delete(w.nodes, node)
	}
	if len(w.nodes) == 0 {
		w.end()
	}
}

func (w *Names) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.nodes))
}

// again begins to serve nodes again. It does not wait: a command may keep the lock of one for long.
func (w *Names) again(ctx context.Context, lacking []string) error {
	for _, node := range lacking {
		if _, busy := w.atWork.LoadOrStore(node, true); busy {
			continue
		}
		go w.Work(func() {
			defer w.atWork.Delete(node)
			did, err := w.Again(ctx, node)
			if err != nil {
				w.Log.Error("serve the names and ports of a node again", "node", node, "err", err)
			} else if did {
				w.Log.Warn("the process that serves names and ports had ended, and serves the node again", "node", node)
			}
		})
	}
	return nil
}
