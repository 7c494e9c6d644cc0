package claims_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/membership"
	"berth/internal/site/claims"
	"berth/internal/site/store"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// host is a host with its agent's claims, as a command reaches them.
type host struct {
	*membership.Agent
	*claims.Claims
	stop func() // ends the agent
	logs []string
}

func newHost(t *testing.T, name string, s store.Store) *host {
	t.Helper()
	dir := testkit.Dir(t, "") // short enough for a socket
	l := layout.New(dir)
	h := &host{Agent: membership.AgentOf(l, &membership.Member{Site: "t", Host: name})}
	h.Claims = &claims.Claims{Layout: l, Host: name, Store: s, Log: func(f string, a ...any) { h.logs = append(h.logs, fmt.Sprintf(f, a...)) }}
	listener, err := h.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { h.Serve(ctx, listener); close(done) }()
	h.stop = func() {
		stop()
		<-done
	}
	t.Cleanup(h.stop)
	return h
}

func claimed(t *testing.T, s store.Store) map[string]string {
	t.Helper()
	all, _, err := s.List(t.Context(), store.Claims)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range all {
		if strings.HasPrefix(e.Key, store.Claims+"fence/") {
			continue
		}
		_, who, _ := strings.Cut(string(e.Value), `"host":"`)
		who, _, _ = strings.Cut(who, `","since`)
		got[strings.TrimPrefix(e.Key, store.Claims)] = strings.Replace(who, `","node":"`, "/", 1)
	}
	return got
}

var (
	name    = membership.Thing{Kind: membership.Name, Value: "n1"}
	mac     = membership.Thing{Kind: membership.MAC, Value: "02:00:00:00:00:01"}
	address = membership.Thing{Kind: membership.Address, Value: "10.0.0.1"}
)

func TestClaimIsRefusedWithWhoHasIt(t *testing.T) {
	m := store.NewMemory()
	a, b := newHost(t, "a", m), newHost(t, "b", m.Client())
	for range 2 { // again without harm
		if err := a.Agent.Claim(t.Context(), "n1", name, mac); err != nil {
			t.Fatal(err)
		}
	}
	err := b.Agent.Claim(t.Context(), "n2", address, mac)
	if refuse.KindOf(err) != refuse.Busy || !strings.Contains(fmt.Sprint(err), "node n2: MAC 02:00:00:00:00:01 is taken in this site: node n1 of host a has it since ") {
		t.Errorf("a MAC of another host: %v", err)
	}
	if err := a.Agent.Claim(t.Context(), "n3", mac); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a MAC of another node of this host: %v", err)
	}
	if err := b.Agent.Release(t.Context(), "n1", mac); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"name/n1": "a/n1", "mac/" + mac.Value: "a/n1"}, claimed(t, m)); diff != "" {
		t.Error(diff)
	}
	if err := a.Agent.Release(t.Context(), "n1", name, mac, address); err != nil {
		t.Fatal(err)
	}
	if err := b.Agent.Claim(t.Context(), "n2", address, mac); err != nil {
		t.Fatal(err)
	}
}

func TestAway(t *testing.T) {
	m := store.NewMemory()
	a := newHost(t, "a", m)
	if err := a.Agent.Claim(t.Context(), "n1", name, mac); err != nil {
		t.Fatal(err)
	}
	back := m.Away()
	defer back()
	begin := time.Now()
	err := a.Agent.Claim(t.Context(), "n2", address)
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(fmt.Sprint(err), "node n2: its name, MACs and addresses cannot be claimed in the site: the cluster state does not answer") {
		t.Errorf("without the cluster state: %v", err)
	}
	if took := time.Since(begin); testkit.Measures() && took > store.Patience+5*time.Second {
		t.Errorf("refused after %s", took)
	}
	if err := a.Agent.Release(t.Context(), "n1", mac); err != nil {
		t.Errorf("a release without the cluster state: %v", err)
	}
	back()
	a.stop()
	err = a.Agent.Claim(t.Context(), "n2", address)
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(fmt.Sprint(err), "systemctl start berthd") {
		t.Errorf("without the agent: %v", err)
	}
	if err := a.Agent.Release(t.Context(), "n1", name); err != nil {
		t.Errorf("a release without the agent: %v", err)
	}
	if err := a.Tell(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := claimed(t, m); len(got) != 0 {
		t.Errorf("still claimed: %v", got)
	}
	if owed, err := membership.Owed(a.Owed); err != nil || len(owed) != 0 {
		t.Errorf("still owed: %v, %v", owed, err)
	}
}

// TestOwedThenClaimed: what was given up untold and is claimed again is not given up afterwards.
func TestOwedThenClaimed(t *testing.T) {
	m := store.NewMemory()
	a := newHost(t, "a", m)
	if err := a.Agent.Claim(t.Context(), "n1", mac); err != nil {
		t.Fatal(err)
	}
	if err := membership.Owe(a.Owed, "n1", mac); err != nil {
		t.Fatal(err)
	}
	if err := a.Agent.Claim(t.Context(), "n1", mac); err != nil {
		t.Fatal(err)
	}
	if err := a.Tell(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"mac/" + mac.Value: "a/n1"}, claimed(t, m)); diff != "" {
		t.Error(diff)
	}
}

// TestTwoOweOneThing: a node that could not claim what another one owes gives it up too, and the other's debt stays.
func TestTwoOweOneThing(t *testing.T) {
	m := store.NewMemory()
	a := newHost(t, "a", m)
	if err := a.Agent.Claim(t.Context(), "n1", mac); err != nil {
		t.Fatal(err)
	}
	a.stop()
	for _, node := range []string{"n1", "n2"} {
		if err := a.Agent.Release(t.Context(), node, mac); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Tell(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := claimed(t, m); len(got) != 0 {
		t.Errorf("still claimed: %v", got)
	}
}

// slow is a store with a commit that is answered as away, and done later.
type slow struct {
	store.Store

	late func() error
}

func (s *slow) Commit(ctx context.Context, guards []store.Guard, ops []store.Op) (int64, error) {
	if s.late == nil && !strings.Contains(ops[0].Key, "fence") {
		s.late = func() error { _, err := s.Store.Commit(context.WithoutCancel(ctx), guards, ops); return err }
		return 0, store.ErrAway
	}
	return s.Store.Commit(ctx, guards, ops)
}

// TestLateCommit: a claim that was given up, because its outcome was not known, is not made afterwards, when its commit arrives.
func TestLateCommit(t *testing.T) {
	m := store.NewMemory()
	s := &slow{Store: m}
	a := newHost(t, "a", s)
	if err := a.Agent.Claim(t.Context(), "n1", mac); refuse.KindOf(err) != refuse.Cannot {
		t.Fatal(err)
	}
	if err := a.Agent.Release(t.Context(), "n1", mac); err != nil {
		t.Fatal(err)
	}
	if _, fenced := errors.AsType[*store.Conflict](s.late()); !fenced {
		t.Error("a commit that arrived late was done")
	}
	if got := claimed(t, m); len(got) != 0 {
		t.Errorf("claimed: %v", got)
	}
	if err := a.Agent.Claim(t.Context(), "n1", mac); err != nil {
		t.Error(err)
	}
}

func TestReconcile(t *testing.T) {
	m := store.NewMemory()
	a, b := newHost(t, "a", m), newHost(t, "b", m.Client())
	for node, things := range map[string][]membership.Thing{"gone": {address}, "n1": {name}} {
		if err := a.Agent.Claim(t.Context(), node, things...); err != nil {
			t.Fatal(err)
		}
	}
	other := membership.Thing{Kind: membership.MAC, Value: "02:00:00:00:00:02"}
	if err := b.Agent.Claim(t.Context(), "n9", other); err != nil {
		t.Fatal(err)
	}
	err := a.Reconcile(t.Context(), func() ([]claims.Holding, error) {
		return []claims.Holding{{Node: "n1", Things: []membership.Thing{name, mac, other}}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"name/n1": "a/n1", "mac/" + mac.Value: "a/n1", "mac/" + other.Value: "b/n9"}
	if diff := cmp.Diff(want, claimed(t, m)); diff != "" {
		t.Error(diff)
	}
	if len(a.logs) != 2 || !strings.Contains(a.logs[1], "node n1 runs with MAC 02:00:00:00:00:02 is taken in this site: node n9 of host b") {
		t.Errorf("logged: %q", a.logs)
	}
}

// TestServers: who asks for the servers of file systems gets those, or why the agent does not know them.
func TestServers(t *testing.T) {
	a := newHost(t, "a", store.NewMemory())
	var err error
	a.Claims.Servers = func(of []string) ([]membership.Server, error) {
		return []membership.Server{{Filesystem: strings.Join(of, " "), Host: "b"}}, err
	}
	got, failed := a.Agent.Servers(t.Context(), []string{"s", "t"})
	if failed != nil || len(got) != 1 || got[0].Filesystem != "s t" {
		t.Errorf("%v, %v", got, failed)
	}
	err = errors.New("it was not heard")
	if _, failed := a.Agent.Servers(t.Context(), nil); failed == nil || !strings.Contains(failed.Error(), err.Error()) {
		t.Errorf("of an agent that does not know: %v", failed)
	}
}

// TestStale: who asks is told whether the agent hears of the site; an agent that does not answer or run is told, too.
func TestStale(t *testing.T) {
	a := newHost(t, "a", store.NewMemory())
	if said, _ := a.Agent.Stale(t.Context()); said != "" {
		t.Errorf("it says %q", said)
	}
	why, wait := "it is away", make(chan struct{})
	a.Claims.Stale = func(context.Context) string { return why }
	a.Claims.Away = func() []string { return []string{"b"} }
	if said, away := a.Agent.Stale(t.Context()); said != why || !slices.Equal(away, []string{"b"}) {
		t.Errorf("it says %q, and that %v are away; want %q, and b", said, away, why)
	}
	a.Claims.Stale = func(context.Context) string { <-wait; return "" }
	began := time.Now()
	if said, _ := a.Agent.Stale(t.Context()); !strings.HasPrefix(said, "berthd does not answer") {
		t.Errorf("of an agent that does not answer it says %q", said)
	}
	if took := time.Since(began); testkit.Measures() && took > 5*time.Second {
		t.Errorf("it says so after %v", took)
	}
	close(wait)
	a.stop()
	if said, _ := a.Agent.Stale(t.Context()); !strings.HasPrefix(said, "berthd does not run") {
		t.Errorf("of an agent that does not run it says %q", said)
	}
}
