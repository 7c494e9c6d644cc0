package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"berth/internal/node/history"
	"berth/internal/node/keeper"
	"berth/internal/node/mechanisms"
	"berth/internal/node/nodelog"
	"berth/internal/node/plan"
	"berth/internal/node/watch"
	"berth/internal/runner"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// Keep runs the keeper. ready is closed when it listens, or when another keeper does. given is the descriptor of the
// state that an older program of this process left for it, or -1.
func (b *Berth) Keep(ctx context.Context, ready *os.File, given int) error {
	defer ready.Close()
	debug.SetGCPercent(100) // it stays: memory counts for more than time
	if err := b.Layout.Make(); err != nil {
		return err
	}
	k, err := keeper.Open(ctx, b.Layout, given)
	if k == nil {
		return err
	}
	in := *b
	in.logs = k.Logs
	watched := watch.Nodes{Nodes: in.Nodes}
	shared := watch.Keeper{Log: k.Log, Work: k.Work}
	wires := &watch.Wires{Keeper: shared, Hub: b.Hub(), Of: watched.Wires, Reattach: in.lockAndReattach}
	vfs := &watch.VFs{Keeper: shared, Has: watched.HasVF, Restore: in.beside.RestoreVFs, Reattach: in.lockAndReattach}
	leases := &watch.Leases{Keeper: shared, Of: watched.Leases, Locked: in.readdressed}
	announced := &watch.Announced{Keeper: shared, Of: watched.Announced}
	served := &watch.Names{Keeper: shared, Places: plan.Served(b.Layout), Has: watched.IsServed, Again: in.serveAgain}
	helpers := keeper.WatcherFunc(func(ctx context.Context, node string, _ proc.ID) { in.keepHelpers(ctx, k, node) })
	go (&watch.Devices{Keeper: shared, Moved: watched.Moved, Replug: in.lockAndReplug}).Run(ctx)
	return k.Serve(ctx, &kept{&in}, wires.Look, ready, vfs, wires, leases, announced, served, helpers, in.checks(k))
}

// UpgradeKeeper makes the keeper, if one runs, become this program. It reports whether one runs.
func (b *Berth) UpgradeKeeper(ctx context.Context) (runs bool, err error) {
	if !b.keeper().Runs() {
		return false, nil
	}
	return true, b.keeper().Upgrade(ctx)
}

// kept are the nodes as the keeper sees them.
type kept struct{ b *Berth }

// Names implements keeper.Nodes.
func (k *kept) Names() ([]string, error) { return k.b.Names() }

// First implements keeper.Nodes.
func (k *kept) First(name string) (proc.ID, error) {
	init, err := k.b.CreatedInit(name)
	if err != nil {
		return proc.ID{}, err
	}
	return init.First(), nil
}

// Due implements keeper.Nodes.
func (k *kept) Due(name string) time.Duration { return k.b.restartIn(name, nil) }

// Log implements keeper.Nodes.
func (k *kept) Log(name string) nodelog.Log { return k.b.log(name) }

// Launch implements keeper.Nodes.
func (k *kept) Launch(ctx context.Context, _ string, text json.RawMessage, files [4]*os.File, line *os.File) error {
	l := &runner.Launch{}
	if err := keeper.Decode(text, l); err != nil {
		return fmt.Errorf("read the launch of a node: %w", err)
	}
	l.Stdin, l.Stdout, l.Stderr, l.Lock, l.Line = files[0], files[1], files[2], files[3], line
	return mechanisms.Create(ctx, l)
}

// Made implements keeper.Nodes.
func (k *kept) Made(ctx context.Context, name string) bool {
	l, err := k.b.lockThere(ctx, name)
	if l == nil || err != nil {
		return false // the node is gone, or the keeper ends
	}
	l.release()
	return k.b.wantsKeeper(name)
}

// Stop implements keeper.Nodes.
func (k *kept) Stop(ctx context.Context, name string, grace time.Duration) error {
	_, err := k.b.Stop(ctx, name, grace)
	return err
}

// Restart implements keeper.Nodes.
func (k *kept) Restart(ctx context.Context, name string) (again time.Duration, err error) {
	b := k.b
	l, err := b.lockNode(ctx, name)
	if refuse.KindOf(err) == refuse.NotFound {
		return 0, nil // removed meanwhile
	}
	if err != nil {
		return b.restartIn(name, nil), err
	}
	defer l.release()
	if b.restartIn(name, nil) == 0 {
		return 0, nil // stopped or started meanwhile
	}
	err = b.renewByPolicy(ctx, l, name)
	if _, notUp := b.LiveInit(name); err != nil && notUp != nil && ctx.Err() == nil { // else it runs, or the keeper ends
		again = b.restartIn(name, func(e history.End) history.End { return e.NotStarted(err.Error(), time.Now()) })
	}
	return again, err
}

// serveAgain tells that process of a node once more, which it does not know any more.
func (b *Berth) serveAgain(ctx context.Context, name string) (did bool, err error) {
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return false, err
	}
	defer l.release()
	return watch.Nodes{Nodes: b.Nodes}.ServeAgain(ctx, name)
}

// readdressed calls f with the node's lock, if this is still its first process and it runs, and notes the addresses that the node
// has then.
func (b *Berth) readdressed(ctx context.Context, name string, first proc.ID, f func() error) (lives bool, err error) {
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return false, err
	}
	defer l.release()
	if init, err := b.LiveInit(name); err != nil || init.First() != first {
		return false, nil // it ended, and what it had is given back or about to be
	}
	if err := f(); err != nil {
		return true, err
	}
	s, err := b.Stored(name)
	if err != nil {
		return true, err
	}
	if st, err := b.Noted(name); err == nil && !slices.Equal(st.Addresses, b.Addresses(s.Now)) {
		st.Addresses = b.Addresses(s.Now)
		b.Note(st)
	}
	return true, nil
}

// KeeperRuns reports whether the keeper runs.
func (b *Berth) KeeperRuns() bool { return keeper.Client{Layout: b.Layout}.Runs() }

// holderEnds is how long a berth run may take to end after its connections are closed.
const holderEnds = 10 * time.Second

// Abandoned implements keeper.Nodes. The connection of a berth run closes a moment before it counts as ended.
func (k *kept) Abandoned(ctx context.Context, name string) error {
	if f, err := k.b.Fate(name); err == nil && f.Owner != nil {
		if pidfd, err := f.Owner.Open(); err == nil {
			proc.WaitFor(ctx, pidfd, holderEnds)
			pidfd.Close()
		}
	}
	return k.b.settled(ctx, name)
}
