package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"berth/internal/host/membership"
	"berth/internal/node/mechanisms"
	"berth/internal/site/claims"
	"berth/internal/site/store"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// newClaims returns the claims of this host: they keep names, MACs and addresses of its nodes unique in the site.
func (a *Agent) newClaims() *claims.Claims {
	return &claims.Claims{
		Layout: a.layout, Host: a.conf.Host, Store: a.store, MayTake: a.MayTake,
		Log: func(format string, v ...any) { a.log.Warn("claims: " + fmt.Sprintf(format, v...)) },
	}
}

// claim answers the claims of this host's commands. The host belongs to the site from the moment at which they are answered.
func (a *Agent) claim(ctx context.Context, answers func()) error {
	return a.claims.Run(ctx, func() error {
		if err := membership.Join(a.layout, membership.Member{Site: a.conf.Site, Host: a.conf.Host}); err != nil {
			return err
		}
		answers()
		return nil
	})
}

// MayTake refuses a new node on a host that is drained, or that has all the nodes that it takes. One that is there may be applied
// again.
func (a *Agent) MayTake(name string) error {
	done, err := a.take(name)
	if err == nil {
		done()
	}
	return err
}

// take is MayTake for a request that makes the node: it has its place until done is called. So of several that come at once those are refused that
// are too many, and not each because of the others.
func (a *Agent) take(name string) (done func(), err error) {
	if j, err := step.Open(a.layout.Node(name).Claims(), mechanisms.Kinds()); err == nil && j.Phase != step.Creating {
		return func() {}, nil
	}
	if m, _ := get[Member](a.view, store.Members, a.conf.Host); !m.Drained.IsZero() {
		return nil, &refuse.Error{
			Kind: refuse.Cannot, What: fmt.Sprintf("node %s: host %s is drained since %s and takes no new nodes", name, a.conf.Host, m.Drained.Local().Format("2006-01-02 15:04")),
			Remedy: "make it on another host, or berth host undrain " + a.conf.Host,
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conf.Slots > 0 && a.taking[name] == 0 {
		has, err := a.nodes.Names()
		if err != nil {
			return nil, err
		}
		has = slices.AppendSeq(has, maps.Keys(a.taking))
		slices.Sort(has)
		has = slices.DeleteFunc(slices.Compact(has), func(n string) bool { return n == name }) // its folder may be there already
		if len(has) >= a.conf.Slots {
			return nil, refuse.Cannotf("make it on another host, remove one here, or raise slots in berthd.yaml",
				"node %s: host %s takes %d nodes and has %d", name, a.conf.Host, a.conf.Slots, len(has))
		}
	}
	a.taking[name]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.taking[name]--; a.taking[name] == 0 {
			delete(a.taking, name)
		}
	}, nil
}
