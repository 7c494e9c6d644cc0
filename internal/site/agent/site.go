package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth/internal/site/api"
	"berth/internal/site/store"
	"berth/internal/sys/refuse"
)

// patient is how long a read waits for the store to say that it is there. The answer does not depend on it.
const patient = 300 * time.Millisecond

// fresh is how long the store's last word that it is there counts.
const fresh = time.Second

// stale says why the agent's view of the site may be out of date; "" if it is not. It asks the store: while nothing changes,
// nothing else shows that the store is away.
func (a *Agent) stale(ctx context.Context) string { return a.staleWithin(ctx, patient) }

func (a *Agent) staleWithin(ctx context.Context, d time.Duration) string {
	a.mu.Lock()
	asked := a.asked
	a.mu.Unlock()
	if text := a.awayText(); text != "" || time.Since(asked) < fresh {
		return text
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	s, err := a.store.Status(ctx)
	switch {
	case err != nil:
		return awayText(time.Now(), store.ErrAway.Error())
	case !s.Reachable:
		return awayText(s.Since, s.Why)
	}
	a.mu.Lock()
	a.asked = time.Now()
	a.mu.Unlock()
	return ""
}

// awayText says since when the store does not answer, and why; "" if it answers, as far as this agent knows.
func (a *Agent) awayText() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.awaySince.IsZero() {
		return ""
	}
	return awayText(a.awaySince, a.awayWhy)
}

func awayText(since time.Time, why string) string {
	return fmt.Sprintf("the cluster state is away since %s (%s): this is the last known state", since.Local().Format("15:04:05"), why)
}

// first waits for the first list of the site, where the agent has just started.
func (a *Agent) first(ctx context.Context) { a.view.wait(ctx, store.Patience) }

// Hosts implements server.Site.
func (a *Agent) Hosts(ctx context.Context) (all []api.Host, stale string, err error) {
	a.first(ctx)
	each(a.view, store.Members, func(below []string, m Member) {
		all = append(all, api.Host{Name: below[0], Address: m.Address, Since: m.Since, Drained: !m.Drained.IsZero()})
	})
	for i := range all {
		h := &all[i]
		r, ok := get[HostRecord](a.view, store.Hosts, h.Name)
		if !ok {
			continue
		}
		h.Alive, h.Version, h.Address = true, r.Version, r.Address
		h.Facts = &api.HostFacts{
			Name: h.Name, Version: r.Version, Kernel: r.Kernel, Cgroups: r.Cgroups, CPUs: r.CPUs, Memory: int64(r.Memory),
			Nodes: r.Nodes, Running: r.Running, Slots: r.Slots, Free: r.Free, Rack: r.Rack, Labels: r.Labels,
		}
	}
	slices.SortFunc(all, func(a, b api.Host) int { return cmp.Compare(a.Name, b.Name) })
	return all, a.stale(ctx), nil
}

// hostsAway lists the hosts of the site whose agents are not heard of, sorted; none before the site is known.
func (a *Agent) hostsAway() (all []string) {
	if !a.view.has(store.Hosts) {
		return nil
	}
	each(a.view, store.Members, func(below []string, _ Member) { all = append(all, below[0]) })
	all = slices.DeleteFunc(all, func(host string) bool {
		_, alive := get[HostRecord](a.view, store.Hosts, host)
		return alive
	})
	slices.Sort(all)
	return all
}

// Nodes implements server.Site.
func (a *Agent) Nodes(ctx context.Context) (all []api.SiteNode, stale string, err error) {
	a.first(ctx)
	each(a.view, store.Nodes, func(below []string, r NodeRecord) {
		if len(below) == 2 {
			all = append(all, api.SiteNode{
				Host: below[0], Name: below[1], Owner: r.Owner, Phase: r.Phase, Addresses: r.Addresses, MACs: r.MACs,
				Digest: r.Digest, Labels: r.Labels,
			})
		}
	})
	slices.SortFunc(all, func(a, b api.SiteNode) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Name, b.Name))
	})
	return all, a.stale(ctx), nil
}

// Drain implements server.Site.
func (a *Agent) Drain(ctx context.Context, host string, on bool) (changed bool, err error) {
	key := store.Key(store.Members, host)
	for {
		had, err := a.store.Get(ctx, key)
		if errors.Is(err, store.ErrAbsent) {
			return false, refuse.NotFoundf("no host %s in this site; berth host ls lists the hosts", host)
		}
		if err != nil {
			return false, a.refusal(err)
		}
		m, err := decode[Member](key, had.Value)
		if err != nil {
			return false, err
		}
		if on != m.Drained.IsZero() {
			return false, nil
		}
		m.Drained = time.Time{}
		if on {
			m.Drained = time.Now().UTC().Truncate(time.Second)
		}
		text, err := json.Marshal(m)
		if err != nil {
			return false, err
		}
		_, err = a.store.Commit(ctx, []store.Guard{{Key: key, Revision: had.Revision}}, []store.Op{{Key: key, Value: text}})
		if _, raced := errors.AsType[*store.Conflict](err); !raced {
			return err == nil, a.refusal(err)
		}
	}
}

// Forget implements server.Site.
func (a *Agent) Forget(ctx context.Context, host string) error {
	_, err := a.store.Get(ctx, store.Key(store.Members, host)) // the view may follow a moment later
	if err != nil && !errors.Is(err, store.ErrAbsent) {
		return a.refusal(err)
	}
	member := err == nil
	if _, err := a.store.Get(ctx, store.Key(store.Hosts, host)); err == nil {
		return &refuse.Error{
			Kind: refuse.Busy, What: fmt.Sprintf("host %s is alive: its nodes need what it has claimed", host),
			Remedy: "remove its nodes and run berthd --leave there, or stop its agent for good first",
		}
	} else if !errors.Is(err, store.ErrAbsent) {
		return a.refusal(err)
	}
	ops, err := a.claimsOf(ctx, host)
	if err != nil {
		return a.refusal(err)
	}
	if len(ops) == 0 && !member {
		return refuse.NotFoundf("no host %s in this site; berth host ls lists the hosts", host)
	}
	for _, kind := range append(nodeKinds(), store.Filesystems) {
		told, _, err := a.store.List(ctx, store.Key(kind, host)+"/")
		if err != nil {
			return a.refusal(err)
		}
		for _, e := range told {
			ops = append(ops, store.Op{Key: e.Key, Delete: true})
		}
	}
	ops = append(ops, store.Op{Key: store.Key(store.Members, host), Delete: true}) // the last: a forget that was cut off is done again
	for part := range slices.Chunk(ops, mostOps) {
		alive := store.Guard{Key: store.Key(store.Hosts, host)}
		if _, err := a.store.Commit(ctx, []store.Guard{alive}, part); err != nil {
			return a.refusal(err)
		}
	}
	return nil
}

// claimsOf lists the operations that remove the claims of a host.
func (a *Agent) claimsOf(ctx context.Context, host string) (ops []store.Op, err error) {
	claims, _, err := a.store.List(ctx, store.Claims)
	for _, e := range claims {
		c, bad := decode[struct {
			Host string `json:"host"`
		}](e.Key, e.Value)
		if bad == nil && c.Host == host {
			ops = append(ops, store.Op{Key: e.Key, Delete: true})
		}
	}
	return ops, err
}

// refusal says in a sentence that the store is away.
func (a *Agent) refusal(err error) error {
	if errors.Is(err, store.ErrRefused) {
		return &refuse.Error{
			Kind: refuse.Cannot, What: "the cluster state lets this host change only what is its own",
			Remedy: "ask the agent of that host (berth --host NAME …), or of the host that keeps the cluster state", Err: err,
		}
	}
	if !errors.Is(err, store.ErrAway) {
		return err
	}
	return &refuse.Error{Kind: refuse.Cannot, What: "the cluster state is away, and what all hosts must agree on waits for it", Remedy: "try again when berth host ls says nothing of it", Err: err}
}
