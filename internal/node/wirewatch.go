package node

import (
	"context"
	"sync"
	"time"

	"berth/internal/link"
)

// wireWatch is the keeper's eye on what the interfaces of running nodes are connected to: bridges, their ports, parents of
// macvlans. It looks when the kernel tells that one of them changed.
type wireWatch struct {
	mu    sync.Mutex
	nodes map[string]*wired
	rooms map[uint64]*room // network namespaces that are followed, by inode
	look  chan struct{}    // a reason to look
	end   context.CancelFunc
}

type wired struct {
	pid   int
	wires []link.Wire
	times int // how often it is watched: a new start may overlap the end of the last
}

type room struct {
	users int
	end   context.CancelFunc
}

// watchWires takes a node up if it has interfaces. letGo ends that.
func (k *keeper) watchWires(ctx context.Context, name string, pid int) (letGo func()) {
	st, err := k.b.status(name)
	if err != nil || len(st.Wires) == 0 {
		return func() {}
	}
	w := &k.wires
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.nodes) == 0 {
		w.nodes, w.rooms, w.look = map[string]*wired{}, map[uint64]*room{}, make(chan struct{}, 1)
		var looking context.Context
		looking, w.end = context.WithCancel(ctx)
		go k.lookAfterWires(looking, w.look)
	}
	n := w.nodes[name]
	if n == nil {
		n = &wired{}
		w.nodes[name] = n
	}
	n.pid, n.wires = pid, st.Wires
	n.times++
	var inodes []uint64
	for _, hub := range link.Rooms(st.Wires, k.b.hub()) {
		inode := hub.Inode()
		inodes = append(inodes, inode)
		r := w.rooms[inode]
		if r == nil {
			r = &room{}
			w.rooms[inode] = r
			var following context.Context
			following, r.end = context.WithCancel(ctx)
			go k.followRoom(following, hub, w.look)
		}
		r.users++
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if n.times--; n.times == 0 && w.nodes[name] == n {
			delete(w.nodes, name)
		}
		for _, inode := range inodes {
			r := w.rooms[inode]
			if r.users--; r.users == 0 {
				r.end()
				delete(w.rooms, inode)
			}
		}
		if len(w.nodes) == 0 {
			w.end()
		}
	}
}

// again gives a reason to look at all nodes.
func (w *wireWatch) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.nodes) > 0 {
		poke(w.look)
	}
}

// followRoom pokes look whenever the kernel tells of a link in a namespace that a node is connected by.
func (k *keeper) followRoom(ctx context.Context, hub link.Hub, look chan<- struct{}) {
	for ctx.Err() == nil {
		if err := hub.Follow(ctx.Done(), func(name string) {
			if name == "" || k.wires.concerns(name) {
				poke(look)
			}
		}); err != nil && ctx.Err() == nil {
			k.log.Error("follow the links that nodes are connected by", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// concerns reports whether a node is connected by a link of that name. Those of nodes that are being started are not yet.
func (w *wireWatch) concerns(name string) bool {
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

// lookAfterWires connects what lost its connection, after each burst of events.
func (k *keeper) lookAfterWires(ctx context.Context, look <-chan struct{}) {
	for settled(ctx, look) {
		k.mendWires(ctx)
	}
}

// settled waits for a reason to look, and then until there was none for a while; false if ctx has ended.
func settled(ctx context.Context, look <-chan struct{}) bool {
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

func (k *keeper) mendWires(ctx context.Context) {
	k.wires.mu.Lock()
	nodes := map[string]wired{}
	for name, n := range k.wires.nodes {
		nodes[name] = *n
	}
	k.wires.mu.Unlock()
	sight := link.Look(k.b.hub())
	for name, n := range nodes {
		for _, wire := range n.wires {
			text, err := sight.Trouble(wire, n.pid)
			if err != nil {
				k.log.Error("look at the connections of nodes", "err", err)
				return
			}
			if text == "" {
				continue
			}
			did, err := k.b.lockAndReattach(ctx, name)
			if err != nil {
				k.log.Warn(text, "node", name, "why", err)
			}
			if did != "" {
				k.log.Info(did, "node", name, "was", text)
			}
			break
		}
	}
}
