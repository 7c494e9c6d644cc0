// Package agent is the agent of a host, berthd: it answers the API for this host, reports the host to its site, and follows what the
// site's store says of the other hosts.
//
// It is a client of the host's keeper as the command line is. Nodes need neither it nor the store: both may be killed at any moment.
package agent

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"berth/internal/node"
	"berth/internal/site/agentconf"
	"berth/internal/site/certs"
	"berth/internal/site/claims"
	"berth/internal/site/store"
	"berth/internal/sys/layout"
)

// Agent is the agent of one host.
type Agent struct {
	conf   *agentconf.Config
	layout layout.Layout
	log    *slog.Logger
	nodes  *node.Berth
	store  store.Store
	view   *View
	dirt   *dirt
	claims *claims.Claims
	signer *certs.Signer // nil: another host signs
	facts  HostRecord    // the fields that do not change
	office office

	mu        sync.Mutex
	states    map[string]bool   // nodes of this host; true: it runs
	taking    map[string]int    // new nodes that requests make now
	told      map[string][]byte // their entries in the store, by key, as far as this agent knows
	toldSelf  []byte            // and of this host
	awaySince time.Time         // zero: the store answers
	awayWhy   string
	awayTold  string    // what the log says of it; "": nothing yet
	asked     time.Time // when the store last said that it is there
}

// New makes the agent of a host. It begins with Run.
func New(c *agentconf.Config, l layout.Layout, nodes *node.Berth, s store.Store, log *slog.Logger) *Agent {
	a := &Agent{
		conf: c, layout: l, log: log, nodes: nodes, store: s, view: newView(log), dirt: newDirt(), facts: hostFacts(c),
		states: map[string]bool{}, taking: map[string]int{}, told: map[string][]byte{}, awaySince: time.Now(), awayWhy: "it has not answered yet",
	}
	a.claims = a.newClaims()
	if signer, err := certs.OpenSigner(agentconf.Signer(l)); err == nil {
		a.signer = signer
	}
	return a
}

// Site is the agent's view of its site.
func (a *Agent) Site() *View { return a.view }

// away notes that the store does not answer.
func (a *Agent) away(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.awayWhy = err.Error()
	if a.awaySince.IsZero() {
		a.awaySince = time.Now()
	}
	tell := "the cluster state does not answer: going on with what it said last, and claiming nothing"
	switch {
	case errors.Is(err, store.ErrDenied):
		tell = "the cluster state refuses this host, which claims nothing: its certificate (or store.user of the agent's file) has to be one of this site, for the name of this host"
	case errors.Is(err, store.ErrRefused):
		tell = "the cluster state refuses what this host says: going on with what it said last, and claiming nothing"
	}
	if tell != a.awayTold {
		a.awayTold = tell
		a.log.Warn(tell, "host", a.conf.Host, "at", a.conf.Store.Endpoints, "err", err)
	}
}

// back notes that the store answers.
func (a *Agent) back() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.awaySince.IsZero() {
		a.log.Info("the cluster state answers", "after", time.Since(a.awaySince).Round(time.Millisecond))
	}
	a.awaySince, a.awayWhy, a.awayTold = time.Time{}, "", ""
}
