// Package claims keeps names, MACs and addresses unique in a site: the agent claims them in the cluster state for the nodes of
// its host, and gives them up. Package membership is the side of the commands.
package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"berth/internal/host/membership"
	"berth/internal/site/store"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Claims are the claims of one host. Its methods run one after the other: the site is told what was given up before the same
// thing is claimed again.
type Claims struct {
	Layout layout.Layout
	Host   string // this host's name in the site
	Store  store.Store
	Log    func(format string, a ...any) // for errors that no caller gets; may be nil
	// MayTake refuses a node that this host does not take; may be nil. Commands that need no agent ask it here.
	MayTake func(node string) error
	// Stale says why this host may not know what the site wants now, "" if it does; may be nil.
	Stale func(context.Context) string
	// Away lists the hosts of the site whose agents are not heard of; may be nil.
	Away func() []string
	// Servers lists the servers of file systems, of all if none is named; may be nil.
	Servers func(filesystems []string) ([]membership.Server, error)

	mu      sync.Mutex
	fence   int64           // revision of this agent's fence; 0: it must be put up
	foreign map[string]bool // nodes that have something by Reconcile alone: it gives that up, too, once they are gone
	doubt   doubt
}

func (c *Claims) log(format string, a ...any) {
	if c.Log != nil {
		c.Log(format, a...)
	}
}

// key returns the key of a thing.
func key(t membership.Thing) string { return store.Key(store.Claims, string(t.Kind), t.Value) }

// thing returns the thing that a key claims.
func thing(key string) (membership.Thing, bool) {
	below := store.Below(store.Claims, key)
	if len(below) != 2 {
		return membership.Thing{}, false
	}
	return membership.Thing{Kind: membership.Kind(below[0]), Value: below[1]}, true
}

// fenceKey is a key whose revision guards each commit of claims. An agent writes it anew when it starts, and after a commit whose
// outcome it does not know: a commit that is still on its way, its own or that of the agent before it, fails from then on, and one
// that was done is seen. Otherwise something could be claimed after it was given up.
func (c *Claims) fenceKey() string { return store.Key(store.Claims, "fence", c.Host) }

// putFence makes sure that nothing of this host is on its way.
func (c *Claims) putFence(ctx context.Context) error {
	if c.fence != 0 {
		return nil
	}
	value, err := json.Marshal(membership.Holder{Host: c.Host, Since: time.Now().UTC().Truncate(time.Second)})
	if err == nil {
		c.fence, err = c.Store.Commit(ctx, nil, []store.Op{{Key: c.fenceKey(), Value: value}})
	}
	return err
}

// commit commits under the guard of the fence key (fenceKey).
func (c *Claims) commit(ctx context.Context, guards []store.Guard, ops []store.Op) error {
	_, err := c.Store.Commit(ctx, append(guards, store.Guard{Key: c.fenceKey(), Revision: c.fence}), ops)
	conflict, raced := errors.AsType[*store.Conflict](err)
	if err == nil || raced && conflict.Key != c.fenceKey() {
		return err
	}
	c.fence = 0
	if raced { // the fence is gone or another: so may be the claims
		c.Again()
		return fmt.Errorf("%w: another agent of host %s commits too", store.ErrAway, c.Host)
	}
	return err
}

// holder reads the value of a claim.
func holder(e store.Entry) (membership.Holder, error) {
	var h membership.Holder
	return h, jsonfile.File{Path: "key " + e.Key + " of the cluster state", Is: "who has it", Remedy: "etcdctl del " + e.Key + " if nobody has it"}.Decode(e.Value, &h)
}

// Claim claims all things for a node of this host, or none. The error is a *membership.Taken if another node has one.
func (c *Claims) Claim(ctx context.Context, node string, things []membership.Thing) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.MayTake != nil {
		if err := c.MayTake(node); err != nil {
			return err
		}
	}
	if err := c.tell(ctx); err != nil {
		return away(err)
	}
	return away(c.claim(ctx, node, things))
}

func (c *Claims) claim(ctx context.Context, node string, things []membership.Thing) error {
	if err := c.putFence(ctx); err != nil {
		return err
	}
	value, err := json.Marshal(membership.Holder{Host: c.Host, Node: node, Since: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return fmt.Errorf("claim for node %s: %w", node, err)
	}
	had := map[string]bool{} // keys that the node has already
	for {
		var guards []store.Guard
		var ops []store.Op
		for _, t := range things {
			if k := key(t); !had[k] && !slices.Contains(guards, store.Guard{Key: k}) {
				guards = append(guards, store.Guard{Key: k})
				ops = append(ops, store.Op{Key: k, Value: value})
			}
		}
		if len(ops) == 0 {
			return nil
		}
		err := c.commit(ctx, guards, ops)
		conflict, ok := errors.AsType[*store.Conflict](err)
		if !ok {
			return err
		}
		if conflict.Now == nil {
			continue
		}
		by, err := holder(*conflict.Now)
		if err != nil {
			return err
		}
		if by.Host != c.Host || by.Node != node {
			t, _ := thing(conflict.Key)
			return &membership.Taken{Thing: t, By: by}
		}
		had[conflict.Key] = true
	}
}

// Release gives things of a node of this host up. Things that the node does not have are left out.
func (c *Claims) Release(ctx context.Context, node string, things []membership.Thing) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return away(c.release(ctx, node, things))
}

func (c *Claims) release(ctx context.Context, node string, things []membership.Thing) error {
	if err := c.putFence(ctx); err != nil {
		return err
	}
	for {
		var guards []store.Guard
		var ops []store.Op
		for _, t := range things {
			e, err := c.Store.Get(ctx, key(t))
			if errors.Is(err, store.ErrAbsent) {
				continue
			}
			if err != nil {
				return err
			}
			by, err := holder(e)
			if err == nil && by.Host == c.Host && by.Node == node {
				guards = append(guards, store.Guard{Key: e.Key, Revision: e.Revision})
				ops = append(ops, store.Op{Key: e.Key, Delete: true})
			}
		}
		if len(ops) == 0 {
			return nil
		}
		err := c.commit(ctx, guards, ops)
		if _, raced := errors.AsType[*store.Conflict](err); !raced {
			return err
		}
	}
}

// Tell tells the site which things nodes of this host have given up while the agent or the cluster state was away.
func (c *Claims) Tell(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tell(ctx)
}

func (c *Claims) tell(ctx context.Context) error {
	owed, err := membership.Owed(c.Layout.SiteOwed())
	if err != nil || len(owed) == 0 {
		return err
	}
	for _, d := range owed {
		if err := c.release(ctx, d.Node, []membership.Thing{d.Thing}); err != nil {
			return err
		}
		if err := d.Settled(c.Layout.SiteOwed()); err != nil {
			return err
		}
	}
	return nil
}

// Holding lists the things that a node of this host has, by its journal.
type Holding struct {
	Node   string
	Things []membership.Thing

	Adopted bool // the node's own steps claim nothing in the site
}

// Reconcile makes the claims agree with the nodes of this host: it claims things that a node has without a claim, such as those of
// nodes from before the host joined, and gives up claims for nodes that do not exist. nodes is asked after the claims were listed:
// a command makes a node's folder before it claims, so a node that is missing then is gone. A thing that another host has is
// logged: both nodes run on, and an admin must decide.
func (c *Claims) Reconcile(ctx context.Context, nodes func() ([]Holding, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.putFence(ctx), c.tell(ctx)); err != nil {
		return err
	}
	all, _, err := c.Store.List(ctx, store.Claims)
	if err != nil {
		return err
	}
	here, err := nodes()
	if err != nil {
		return err
	}
	there := map[string]bool{}
	c.foreign = map[string]bool{}
	for _, h := range here {
		there[h.Node] = true
		if h.Adopted {
			c.foreign[h.Node] = true
		}
	}
	claimed := map[string]membership.Holder{}
	for _, e := range all {
		if e.Key == c.fenceKey() {
			continue
		}
		by, err := holder(e)
		if err != nil {
			c.log("%v", err)
			continue
		}
		claimed[e.Key] = by
		t, ok := thing(e.Key)
		if !ok || by.Host != c.Host || there[by.Node] {
			continue
		}
		if err := c.release(ctx, by.Node, []membership.Thing{t}); err != nil {
			return err
		}
		c.log("gave up %s of node %s, which is gone", t, by.Node)
	}
	for _, h := range here {
		for _, t := range h.Things {
			if by := claimed[key(t)]; by.Host == c.Host && by.Node == h.Node {
				continue
			}
			// A command that removes the node may have given this up already, before it was listed: then no command would give it
			// up again.
			c.foreign[h.Node] = true
			err := c.claim(ctx, h.Node, []membership.Thing{t})
			if taken, ok := errors.AsType[*membership.Taken](err); ok {
				c.log("node %s runs with %v: one of the two must get another", h.Node, taken)
				continue
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// away turns errors of the cluster state into refusals.
func away(err error) error {
	if err == nil {
		return nil
	}
	if _, taken := errors.AsType[*membership.Taken](err); taken {
		return err
	}
	if errors.Is(err, store.ErrAway) {
		return &refuse.Error{
			Kind: refuse.Cannot, What: "its name, MACs and addresses cannot be claimed in the site: the cluster state does not answer",
			Remedy: "try again when it is back (berth host ls says since when it is away); nodes that are there run on", Err: err,
		}
	}
	return &refuse.Error{Kind: refuse.Failed, What: "its name, MACs and addresses cannot be claimed in the site: " + err.Error(), Err: err}
}
