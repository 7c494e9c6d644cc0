package watch

import (
	"context"
	"sync"
	"time"

	"berth/internal/host/netif"
	"berth/internal/network/link"
	"berth/internal/sys/proc"
)

// Wires connects the interfaces of running nodes again when bridges, their ports or parents of macvlans went and came back. It
// looks when the kernel tells that one of them changed.
type Wires struct {
	Keeper
	Hub      netif.Hub                                              // where the bridge between nodes is
	Of       func(node string) []link.Wire                          // the connections of a node's interfaces
	Reattach func(ctx context.Context, node string) (string, error) // connects interfaces that have lost their connection

	mu         sync.Mutex
	nodes      map[string]*wired
	namespaces map[uint64]*followed // network namespaces, by inode
	look       chan struct{}        // a reason to look
	end        context.CancelFunc
}

type wired struct {
	first proc.ID
	wires []link.Wire
	times int // how often it is watched: a new start may overlap the end of the last
}

type followed struct {
	users int
	end   context.CancelFunc
}

// Watch implements keeper.Watcher.
func (w *Wires) Watch(ctx context.Context, node string, first proc.ID) {
	wires := w.Of(node)
	if len(wires) == 0 {
		return
	}
	background := context.WithoutCancel(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.nodes) == 0 {
		w.nodes, w.namespaces, w.look = map[string]*wired{}, map[uint64]*followed{}, make(chan struct{}, 1)
		var looking context.Context
		looking, w.end = context.WithCancel(background)
		go w.lookAfter(looking, w.look)
	}
	n := w.nodes[node]
	if n == nil {
		n = &wired{}
		w.nodes[node] = n
	}
	n.first, n.wires = first, wires
	n.times++
	var inodes []uint64
	for _, hub := range link.Namespaces(wires, w.Hub) {
		inode := hub.Inode()
		inodes = append(inodes, inode)
		ns := w.namespaces[inode]
		if ns == nil {
			ns = &followed{}
			w.namespaces[inode] = ns
			var following context.Context
			following, ns.end = context.WithCancel(background)
			go w.follow(following, hub, w.look)
		}
		ns.users++
	}
	context.AfterFunc(ctx, func() { w.letGo(node, n, inodes) })
}

func (w *Wires) letGo(node string, n *wired, inodes []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.times--; n.times == 0 && w.nodes[node] == n {
		delete(w.nodes, node)
	}
	for _, inode := range inodes {
		ns := w.namespaces[inode]
		if ns.users--; ns.users == 0 {
			ns.end()
			delete(w.namespaces, inode)
		}
	}
	if len(w.nodes) == 0 {
		w.end()
	}
}

// Look looks at all nodes, as after a time without a watcher.
func (w *Wires) Look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.nodes) > 0 {
		poke(w.look)
	}
}

// follow pokes look whenever the kernel tells of a link in a namespace that a node is connected by.
func (w *Wires) follow(ctx context.Context, hub netif.Hub, look chan<- struct{}) {
	for ctx.Err() == nil {
		if err := hub.Follow(ctx.Done(), func(name string) {
			if name == "" || w.concerns(name) {
				poke(look)
			}
		}); err != nil && ctx.Err() == nil {
			w.Log.Error("follow the links that nodes are connected by", "err", err)
		}
		pause(ctx, time.Second)
	}
}

// concerns reports whether a node is connected by a link of that name. Those of nodes that are being started are not yet.
func (w *Wires) concerns(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.nodes {
		for _, wire := range n.wires {
			if name == wire.Parent || name == wire.HostIf {
				return true
			}
		}
	}
	return false
}

// lookAfter connects interfaces that lost their connection, after each burst of events.
func (w *Wires) lookAfter(ctx context.Context, look <-chan struct{}) {
	for quiet(ctx, look) {
		w.Work(func() { w.mend(ctx) })
	}
}

func (w *Wires) mend(ctx context.Context) {
	w.mu.Lock()
	nodes := map[string]wired{}
	for node, n := range w.nodes {
		nodes[node] = *n
	}
	w.mu.Unlock()
	sight := link.LinksAlone(w.Hub)
	for node, n := range nodes {
		for _, wire := range n.wires {
			text, err := sight.Trouble(wire, n.first.PID)
			if err != nil {
				w.Log.Error("look at the connections of nodes", "err", err)
				return
			}
			if text == "" {
				continue
			}
			did, err := w.Reattach(ctx, node)
			if err != nil {
				w.Log.Warn(text, "node", node, "why", err)
			}
			if did != "" {
				w.Log.Info(did, "node", node, "was", text)
			}
			break
		}
	}
}
