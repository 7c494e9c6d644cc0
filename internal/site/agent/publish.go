package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/internal/node"
	"berth/internal/node/events"
	"berth/internal/site/store"
	"berth/internal/sys/step"
)

// ttl is how long the site takes a host for alive that it hears nothing of.
const ttl = 30 * time.Second

// retry is the pause after an attempt on a store that is away. Nothing is asked regularly while it is there.
const retry = 500 * time.Millisecond

// mostOps is the most changes in one commit: etcd takes 128 by default.
const mostOps = 64

// dirt is the nodes whose record may be out of date.
type dirt struct {
	mu    sync.Mutex
	nodes map[string]bool
	woken chan struct{} // holds one wake-up at most
}

func newDirt() *dirt { return &dirt{nodes: map[string]bool{}, woken: make(chan struct{}, 1)} }

func (d *dirt) add(names ...string) {
	d.mu.Lock()
	for _, n := range names {
		d.nodes[n] = true
	}
	d.mu.Unlock()
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

func (d *dirt) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := slices.Sorted(maps.Keys(d.nodes))
	clear(d.nodes)
	return names
}

// followEvents marks nodes as their events are written, until ctx ends. Events from before it began are left to followFolders.
func (a *Agent) followEvents(ctx context.Context) error {
	return a.nodes.Events().Follow(ctx, false, func(e events.Event) error {
		a.dirt.add(e.Node)
		return nil
	})
}

// attend keeps this host in its site until ctx ends: again and again where the store goes away.
func (a *Agent) attend(ctx context.Context) {
	for ctx.Err() == nil {
		err := a.attendOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		a.away(err)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// errLost says that the store took this host for dead.
var errLost = errors.New("the session with the store is lost")

// attendOnce begins a session, publishes all entries of this host and then its changes, until the store refuses one.
func (a *Agent) attendOnce(ctx context.Context) error {
	if err := a.store.Session(ctx, ttl); err != nil {
		return err
	}
	lost := a.store.Done()
	if err := a.join(ctx); err != nil {
		return err
	}
	if err := a.tellFilesystems(ctx); err != nil {
		return err
	}
	a.claims.Again() // a site that lost this host's session may have forgotten the host, or have been restored
	if err := a.reconcile(ctx); err != nil {
		return err
	}
	a.back()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-lost:
			return errLost
		case <-a.dirt.woken:
		}
		names := a.dirt.take()
		if err := a.publish(ctx, names); err != nil {
			a.dirt.add(names...)
			return err
		}
	}
}

// join makes this host a member, if it is not one.
func (a *Agent) join(ctx context.Context) error {
	return a.member(ctx, func(m *Member) bool {
		same := m.Address == a.conf.Address && !m.Since.IsZero()
		if m.Address = a.conf.Address; m.Since.IsZero() {
			m.Since = time.Now().UTC().Truncate(time.Second)
		}
		return !same
	})
}

// member changes the entry of this host that outlives its agent. change reports whether it changed something.
func (a *Agent) member(ctx context.Context, change func(*Member) bool) error {
	key := store.Key(store.Members, a.conf.Host)
	for {
		var m Member
		had, err := a.store.Get(ctx, key)
		if err == nil {
			m, err = decode[Member](key, had.Value)
		} else if errors.Is(err, store.ErrAbsent) {
			err = nil
		}
		if err != nil || !change(&m) {
			return err
		}
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		_, err = a.store.Commit(ctx, []store.Guard{{Key: key, Revision: had.Revision}}, []store.Op{{Key: key, Value: text}})
		if _, raced := errors.AsType[*store.Conflict](err); !raced {
			return err
		}
	}
}

// reconcile brings the store's entries of this host's nodes in line with the nodes.
func (a *Agent) reconcile(ctx context.Context) error {
	told, is := map[string][]byte{}, map[string]node.Status{}
	a.dirt.take() // all of them are looked at now
	for _, kind := range nodeKinds() {
		prefix := store.Key(kind, a.conf.Host) + "/"
		listed, _, err := a.store.List(ctx, prefix)
		if err != nil {
			return err
		}
		for _, e := range listed {
			told[e.Key] = e.Value
			is[strings.TrimPrefix(e.Key, prefix)] = node.Status{} // gone, unless it is in the list
		}
	}
	all, err := a.nodes.List(ctx)
	if err != nil {
		return err
	}
	for _, s := range all {
		is[s.Name] = s
	}
	a.mu.Lock()
	a.told, a.toldSelf = told, nil
	a.mu.Unlock()
	return a.tell(ctx, is)
}

// nodeKinds are the prefixes below which a host tells of each of its nodes, at HOST/NODE.
func nodeKinds() []string { return []string{store.Nodes, store.IO} }

// publish tells the store of nodes that may have changed.
func (a *Agent) publish(ctx context.Context, names []string) error {
	boot, err := step.BootID()
	if err != nil {
		return err
	}
	is := map[string]node.Status{}
	for _, name := range names {
		is[name] = a.nodes.Status(name, boot)
	}
	return a.tell(ctx, is)
}

// tell commits the entries of nodes and of this host that differ from the last ones. A status without a name means that the node is
// gone.
func (a *Agent) tell(ctx context.Context, is map[string]node.Status) error {
	values := map[string][]byte{} // by key; none: the key is to go
	for name, s := range is {
		if s.Name != "" {
			values[store.Key(store.Nodes, a.conf.Host, name)], values[store.Key(store.IO, a.conf.Host, name)] = a.recordsOf(s)
		}
	}
	var ops []store.Op
	a.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if s := is[name]; s.Name == "" {
			delete(a.states, name)
		} else {
			a.states[name] = s.Runs()
		}
		for _, kind := range nodeKinds() {
			op := store.Op{Key: store.Key(kind, a.conf.Host, name)}
			op.Value = values[op.Key]
			op.Delete = op.Value == nil
			if was, there := a.told[op.Key]; there != (op.Value != nil) || !bytes.Equal(op.Value, was) {
				ops = append(ops, op)
			}
		}
	}
	self, err := json.Marshal(a.self())
	if err == nil && !bytes.Equal(self, a.toldSelf) {
		ops = append(ops, store.Op{Key: store.Key(store.Hosts, a.conf.Host), Value: self, Lease: true})
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	for part := range slices.Chunk(ops, mostOps) {
		if _, err := a.store.Commit(ctx, nil, part); err != nil {
			return err
		}
		a.mu.Lock()
		for _, op := range part {
			switch {
			case op.Lease:
				a.toldSelf = op.Value
			case op.Delete:
				delete(a.told, op.Key)
			default:
				a.told[op.Key] = op.Value
			}
		}
		a.mu.Unlock()
	}
	return nil
}

// self returns the record of this host. The caller holds the lock.
func (a *Agent) self() HostRecord {
	r := a.facts
	r.Nodes = len(a.states)
	for _, runs := range a.states {
		if runs {
			r.Running++
		}
	}
	if r.Slots > 0 {
		r.Free = max(0, r.Slots-r.Nodes)
	}
	return r
}
