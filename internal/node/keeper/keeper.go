// Package keeper is the process that outlives commands: it is the parent of all nodes of one root of Berth, waits for their ends,
// and acts for them when no command does.
//
// A [Client] talks to the keeper, and starts it if none runs. The keeper acts on nodes through [Nodes].
package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/node/nodelog"
	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/inherit"
	"berth/internal/sys/layout"
	"berth/internal/sys/lock"
	"berth/internal/sys/proc"
)

// Keeper is the keeper's process. It ends with the last node.
type Keeper struct {
	Log  *slog.Logger
	Logs *nodelog.Set // the output of nodes

	layout   layout.Layout
	lock     *os.File // held, with the keeper's lock on it
	listener *os.File
	nodes    Nodes
	watchers []Watcher
	before   time.Time // the last action of the keeper before this one; long ago if there was none
	given    *handover // by this process before it became this program; nil in a new process

	mu      sync.Mutex
	busy    int           // nodes watched, connections open, restarts pending, work
	works   int           // those of busy that are work: an upgrade must not cut it off
	paused  chan struct{} // not nil: no work begins until it is closed
	ending  bool          // nothing is taken on any more
	watched map[string]*watched
	due     map[string]time.Time // nodes that wait for a restart, and until when
	made    map[string]bool      // nodes that a command makes
	talks   map[*talk]bool       // connections; true while one is being answered
	idle    chan struct{}
}

// Watcher looks after one aspect of each node while the node runs. Watch returns at once; the work that it began ends with ctx.
type Watcher interface {
	Watch(ctx context.Context, node string, first proc.ID)
}

// WatcherFunc is a function as a Watcher.
type WatcherFunc func(ctx context.Context, node string, first proc.ID)

// Watch implements Watcher.
func (f WatcherFunc) Watch(ctx context.Context, node string, first proc.ID) { f(ctx, node, first) }

// Open makes this process the keeper of a layout. given is the descriptor of the state that an older program left in this
// process when it became this one, or -1. The keeper is nil, without an error, if another process is the keeper.
func Open(ctx context.Context, l layout.Layout, given int) (*Keeper, error) {
	burden := inherit.Free() // it starts nodes for all callers
	if burden != nil && given < 0 {
		return nil, burden
	}
	k := &Keeper{
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), layout: l,
		watched: map[string]*watched{}, due: map[string]time.Time{}, made: map[string]bool{}, talks: map[*talk]bool{},
		idle: make(chan struct{}, 1),
	}
	if burden != nil { // its older program did not mind; the nodes that it watches are more than those that it shall start
		k.Log.Warn("this keeper starts no nodes", "err", burden)
	}
	var err error
	if k.Logs, err = nodelog.NewSet(func(node string, why error) {
		k.Log.Error("what the node writes is dropped", "node", node, "err", why)
	}); err != nil {
		return nil, err
	}
	if given >= 0 {
		if k.given, err = readHandover(given); err != nil {
			return nil, fmt.Errorf("take over from the keeper's older program: %w", err)
		}
		k.lock, k.listener = os.NewFile(uintptr(k.given.Lock), l.KeeperLock()), os.NewFile(uintptr(k.given.Listener), l.KeeperSocket())
		fork.Remember(k.given.Ended)
	} else {
		if k.lock, err = os.OpenFile(l.KeeperLock(), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return nil, fmt.Errorf("lock the keeper: %w", err)
		}
		if mine, err := lock.TryVisible(k.lock); err != nil || !mine {
			k.lock.Close()
			return nil, err
		}
		fault.Point("keeper locked")
		if k.listener, err = listen(l.KeeperSocket()); err != nil {
			k.lock.Close()
			return nil, fmt.Errorf("listen for commands: %w", err)
		}
	}
	// A process that loses its parent becomes the keeper's child: so does the runtime's init, whose exit code the kernel tells
	// its parent alone.
	if err := fork.Adopt(ctx); err != nil {
		return nil, fmt.Errorf("become a subreaper: %w", err)
	}
	k.before = lastAct(k.lock)
	return k, nil
}

// listen makes the keeper's socket. Another keeper's may be there: it was killed, because this one has the lock.
func listen(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the socket is removed before the lock is given up, not after
	defer l.Close()
	fault.Point("keeper listens")
	f, err := l.File() // a copy, which blocks
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Serve keeps the nodes until there is nothing left to do. It closes ready when it listens. It calls adopted, if set, when it
// watches the nodes that are there already.
func (k *Keeper) Serve(ctx context.Context, nodes Nodes, adopted func(), ready *os.File, watchers ...Watcher) error {
	k.nodes, k.watchers = nodes, watchers
	defer k.lock.Close()
	k.leaveUnit()
	k.enter() // the starter: it connects, or the grace below ends
	k.begin() // the next upgrade comes after this one
	k.resume(ctx)
	k.adopt(ctx, func(proc.ID) bool { return true })
	k.resumeTalks(ctx)
	k.finish()
	if adopted != nil {
		adopted()
	}
	go k.accept(ctx)
	ready.Close()
	time.AfterFunc(500*time.Millisecond, k.leave)
	for ctx.Err() == nil && !k.done(ctx, adopted) {
		select {
		case <-ctx.Done():
		case <-k.idle:
		}
	}
	if hostEnds() {
		k.stopNodes(context.WithoutCancel(ctx))
	}
	_ = os.Remove(k.layout.KeeperSocket())
	fault.Point("keeper ends")
	return k.listener.Close() // a client that connected too late sees that its request was not read
}

// enter counts one thing more to do; false if the keeper ends.
func (k *Keeper) enter() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.ending {
		k.busy++
	}
	return !k.ending
}

func (k *Keeper) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left()
}

func (k *Keeper) left() {
	if k.busy--; k.busy == 0 {
		select {
		case k.idle <- struct{}{}:
		default:
		}
	}
}

// begin begins work, which neither the keeper's end nor an upgrade cuts off; false if the keeper ends. It waits while the
// keeper is about to become another program.
func (k *Keeper) begin() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.paused != nil {
		paused := k.paused
		k.mu.Unlock()
		<-paused
		k.mu.Lock()
	}
	if k.ending {
		return false
	}
	k.works++
	k.busy++
	return true
}

func (k *Keeper) finish() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.works--
	k.left()
}

// Work runs f, and neither the keeper's end nor an upgrade cuts it off. It does nothing if the keeper ends.
func (k *Keeper) Work(f func()) {
	if k.begin() {
		defer k.finish()
		f()
	}
}

// done reports whether there is nothing left to do, after a last look: a node may be up of which the keeper was not told.
func (k *Keeper) done(ctx context.Context, adopted func()) bool {
	k.mu.Lock()
	busy := k.busy
	k.mu.Unlock()
	if busy > 0 {
		return false
	}
	k.adopt(ctx, proc.ID.Alive)
	if adopted != nil {
		adopted()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ending = k.busy == 0
	return k.ending
}

// adopt takes up the nodes that are there, as after a keeper that was killed.
func (k *Keeper) adopt(ctx context.Context, mine func(first proc.ID) bool) {
	names, err := k.nodes.Names()
	if err != nil {
		k.Log.Error("list nodes", "err", err)
	}
	for _, name := range names {
		if first, err := k.nodes.First(name); (err != nil || !mine(first)) && k.nodes.Due(name) == 0 {
			continue // being made, or not running
		}
		if err := k.watch(ctx, name); err != nil {
			k.Log.Error("watch node", "node", name, "err", err)
		}
	}
}

// acts sets the time of the keeper's lock: at that time the keeper, and all inits that it waits for, existed. When a keeper was
// killed cannot be known later, but when it last did something.
func (k *Keeper) acts() {
	now := time.Now()
	_ = os.Chtimes(k.layout.KeeperLock(), now, now)
}

// lastAct is when a keeper last did something; never a zero time.
func lastAct(lock *os.File) time.Time {
	if s, err := lock.Stat(); err == nil {
		return s.ModTime()
	}
	return time.Unix(0, 0)
}
