package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"berth/internal/host/membership"
	"berth/internal/site/intercept/gate"
	"berth/internal/site/iosync"
	"berth/internal/site/iosync/allot"
	"berth/internal/site/iosync/place"
	"berth/internal/site/iosync/want"
	"berth/internal/site/store"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/sibling"
)

// again is the pause after a file system could not be served as the site wants it.
const again = time.Second

// tellFilesystems makes the store say which file systems this host serves.
func (a *Agent) tellFilesystems(ctx context.Context) error {
	prefix := store.Key(store.Filesystems, a.conf.Host) + "/"
	listed, _, err := a.store.List(ctx, prefix)
	if err != nil {
		return err
	}
	told := map[string][]byte{}
	for _, e := range listed {
		told[strings.TrimPrefix(e.Key, prefix)] = e.Value
	}
	var ops []store.Op
	for _, f := range a.conf.Filesystems {
		text, err := json.Marshal(want.Server{Path: f.Path, Server: f.Server, Way: f.WayOf(), Capacity: f.Capacity})
		if err != nil {
			return err
		}
		if !bytes.Equal(told[f.Name], text) {
			ops = append(ops, store.Op{Key: prefix + f.Name, Value: text})
		}
		delete(told, f.Name)
	}
	for name := range told {
		ops = append(ops, store.Op{Key: prefix + name, Delete: true})
	}
	for part := range slices.Chunk(ops, mostOps) {
		if _, err := a.store.Commit(ctx, nil, part); err != nil {
			return err
		}
	}
	return nil
}

// serveFilesystems is VNode Sync on this host: it keeps the groups of nodes that use its file systems, until ctx ends. The groups
// and limits stay afterwards: limits hold while the agent is restarted, upgraded, or away from the cluster state.
func (a *Agent) serveFilesystems(ctx context.Context) error {
	woken := make(chan struct{}, 1)
	wake := func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	}
	a.view.Follow(func(c store.Change) {
		if strings.HasPrefix(c.Key, store.IO) || strings.HasPrefix(c.Key, store.Filesystems) {
			a.forgetDemands()
			wake()
		}
	})
	if err := resumeStopped(a.layout); err != nil {
		a.log.Error("processes of file servers that the last agent left stopped", "err", err)
	}
	if err := iosync.Sweep(a.layout, a.conf.Filesystems, a.log); err != nil {
		a.log.Error("file systems that are not served any more", "err", err)
	}
	if len(a.conf.Filesystems) == 0 {
		return nil
	}
	// Before all is listed, nodes that are there would be taken for gone.
	if err := a.view.whole(ctx, store.IO, store.Filesystems); err != nil {
		return err
	}
	if err := iosync.WatchInterfaces(ctx, a.conf.Filesystems, wake); err != nil {
		return err
	}
	served := map[string]*iosync.Served{}
	defer func() {
		for _, s := range served {
			s.Close()
		}
	}()
	asking := newAsking(a)
	defer asking.tick.Stop()
	for {
		retry := (<-chan time.Time)(nil)
		for _, conf := range a.conf.Filesystems {
			var err error
			s := served[conf.Name]
			if s == nil {
				s, err = iosync.Serve(ctx, a.layout, conf, openGate, a.log, wake)
				if err == nil {
					served[conf.Name] = s
				}
				if ctx.Err() != nil {
					return nil // what was interrupted is no reason, and nobody would take it back
				}
				if e := iosync.NoteUnserved(a.layout, conf, err); e != nil {
					a.log.Error("berth sync ls does not say whether a file system is served", "filesystem", conf.Name, "err", e)
				}
			}
			if err == nil {
				err = s.Follow(ctx, a.wishes(conf.Name))
			}
			if errors.Is(err, iosync.ErrAnew) {
				served[conf.Name].Close()
				delete(served, conf.Name)
			}
			if err != nil {
				a.log.Error("file system is not served as the site wants it; trying again", "filesystem", conf.Name, "err", err)
				retry = time.After(again)
			}
		}
		if done := asking.until(ctx, served, woken, retry); done {
			return nil
		}
	}
}

// resumeStopped continues processes that the gate of an earlier agent left stopped, also of file systems that this host does not
// serve any more.
func resumeStopped(l layout.Layout) error {
	names, err := place.Known(l)
	failed := []error{err}
	for _, n := range names {
		failed = append(failed, gate.Resume(place.Dir(l, n)))
	}
	return errors.Join(failed...)
}

// openGate opens the gate of a server, for way gate.
func openGate(port int, dir string, to iosync.Processes, wake func(), log *slog.Logger) (iosync.Gate, error) {
	guard, err := sibling.Find("berth-sync", "what way gate stops is guarded", "install it beside berthd: make install puts both there")
	if err != nil {
		return nil, err
	}
	return gate.Open(gate.Server{Port: port, Dir: dir, Guard: guard, Groups: to, Wake: wake, Log: log})
}

// fileServers lists the servers of file systems, of all if none is named. Until it has heard of the site it refuses: that no host serves a
// file system is not known then.
func (a *Agent) fileServers(of []string) (all []membership.Server, err error) {
	if !a.view.has(store.Filesystems) {
		return nil, refuse.Cannotf("try again when it is there: berth host ls says since when it is away", "the cluster state was not heard since berthd started")
	}
	each(a.view, store.Filesystems, func(below []string, s want.Server) {
		if len(below) == 2 && (len(of) == 0 || slices.Contains(of, below[1])) {
			all = append(all, membership.Server{Filesystem: below[1], Host: below[0], Way: s.Way})
		}
	})
	slices.SortFunc(all, func(x, y membership.Server) int {
		return cmp.Or(cmp.Compare(x.Filesystem, y.Filesystem), cmp.Compare(x.Host, y.Host))
	})
	return all, nil
}

// wishes lists the limits that nodes of the site ask for on a file system, sorted by node.
func (a *Agent) wishes(filesystem string) []iosync.Wish {
	servers, bounded := 1, false // this one, also before the view has it
	each(a.view, store.Filesystems, func(below []string, s want.Server) {
		if len(below) == 2 && below[1] == filesystem {
			bounded = bounded || s.Capacity != want.Capacity{}
			if below[0] != a.conf.Host {
				servers++
			}
		}
	})
	var all []iosync.Wish
	each(a.view, store.IO, func(below []string, n want.Node) {
		if e, ok := n.On(filesystem); ok && len(below) == 2 {
			all = append(all, iosync.Wish{Host: below[0], Node: below[1], Addresses: n.Addresses, Strays: n.Strays, Class: n.Class, Want: e, Servers: servers, Bounded: bounded})
		}
	})
	slices.SortFunc(all, func(x, y iosync.Wish) int { return cmp.Compare(x.Node, y.Node) })
	return all
}

// asking is the conversation of this host's file systems with the allocator of the site.
type asking struct {
	a       *Agent
	answers chan answer
	busy    map[string]bool  // file systems whose report is not answered yet
	failing map[string]error // said once
	tick    *time.Ticker     // stopped while no allowance is split
	ticks   bool
}

// answer is an order for a file system.
type answer struct {
	filesystem string
	sent       time.Time // when the report was made that it answers
	order      allot.Order
	err        error
}

func newAsking(a *Agent) *asking {
	k := &asking{
		a: a, answers: make(chan answer, len(a.conf.Filesystems)), busy: map[string]bool{}, failing: map[string]error{}, tick: time.NewTicker(allot.Every),
	}
	k.tick.Stop()
	return k
}

// until reports twice a second while some allowance is split, and enforces the parts that come back, until there is other work.
// done is true when ctx ended.
func (k *asking) until(ctx context.Context, served map[string]*iosync.Served, woken <-chan struct{}, retry <-chan time.Time) (done bool) {
	splits := false
	for _, s := range served {
		splits = splits || s.Splits()
	}
	switch { // else it goes on: frequent wake-ups do not keep it from reporting
	case splits && !k.ticks:
		k.tick.Reset(allot.Every)
	case !splits:
		k.tick.Stop()
	}
	k.ticks = splits
	for {
		select {
		case <-ctx.Done():
			return true
		case <-woken:
			return false
		case <-retry:
			return false
		case <-k.tick.C:
			for name, s := range served {
				if !s.Splits() {
					continue
				}
				if err := s.Alone(ctx, time.Now()); err != nil {
					k.a.log.Error("an allowance cannot be lowered", "filesystem", name, "err", err)
				}
				if !k.busy[name] {
					k.send(ctx, name, s.Report(k.a.conf.Host, time.Now()))
				}
			}
		case got := <-k.answers:
			k.take(ctx, served[got.filesystem], got)
		}
	}
}

// send sends a report; the answer comes later.
func (k *asking) send(ctx context.Context, filesystem string, r allot.Report) {
	k.busy[filesystem] = true
	sent := time.Now()
	go func() {
		o, err := k.a.ask(ctx, r)
		k.answers <- answer{filesystem, sent, o, err} // there is room: one answer a file system
	}()
}

// take enforces an order, and confirms it at once.
func (k *asking) take(ctx context.Context, s *iosync.Served, got answer) {
	delete(k.busy, got.filesystem)
	if s == nil || ctx.Err() != nil {
		return
	}
	changed, err := false, got.err
	if err == nil {
		if changed, err = s.Obey(ctx, got.order, got.sent); err != nil {
			err = fmt.Errorf("enforce what it ordered: %w", err)
		}
	}
	if changed {
		k.send(ctx, got.filesystem, s.Confirm(k.a.conf.Host))
	}
	switch before := k.failing[got.filesystem]; {
	case err == nil && before != nil:
		k.a.log.Info("allowances follow the load again", "filesystem", got.filesystem)
	case err != nil && (before == nil || before.Error() != err.Error()):
		k.a.log.Warn("allowances do not follow the load now", "filesystem", got.filesystem, "err", err)
	}
	k.failing[got.filesystem] = err
}
