package agent

import (
	"context"
	"log/slog"
	"testing"

	"berth/internal/host/membership"
	"berth/internal/node/events"
	"berth/internal/site/agentconf"
	"berth/internal/site/store"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestAgain: what a node has is claimed again after the site forgot this host, which was cut off, and after the claims changed below
// the agent, as a restore of the store does.
func TestAgain(t *testing.T) {
	memory := store.NewMemory()
	b := newBed(t, memory)
	b.node("n1", events.Created)
	b.run()
	ctx, stop := context.WithCancel(context.Background())
	answers, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- b.claim(ctx, func() { close(answers) }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-answers
	key := store.Key(store.Claims, string(membership.Name), "n1")
	claimed := func(when string) {
		t.Helper()
		testkit.Eventually(t, when+": node n1 has a claim of its name", func() bool {
			_, err := memory.Get(t.Context(), key)
			return err == nil && b.awayText() == ""
		})
	}
	forget := func(prefixes ...string) {
		t.Helper()
		var ops []store.Op
		for _, p := range prefixes {
			all, _, err := memory.List(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range all {
				ops = append(ops, store.Op{Key: e.Key, Delete: true})
			}
		}
		if _, err := memory.Commit(t.Context(), nil, ops); err != nil {
			t.Fatal(err)
		}
	}
	claimed("at first")
	forget(store.Claims, store.Members, store.Nodes)
	b.store.(*store.Memory).Expire()
	claimed("after the site forgot the host")
	forget(store.Claims)
	if err := b.claims.Claim(t.Context(), "n2", []membership.Thing{{Kind: membership.Name, Value: "n2"}}); err == nil {
		t.Error("a claim behind a fence that is gone")
	}
	claimed("after the claims were lost")
}

// TestSlots: of many requests at once for more nodes than a host takes, as many as it takes have their place, until they have the node or failed.
func TestSlots(t *testing.T) {
	b := newBed(t, store.NewMemory())
	b.conf.Slots = 2
	b.node("n1", events.Created)
	done, err := b.take("n2")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n3", "n4"} {
		if _, err := b.take(name); refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("one more: %v", err)
		}
	}
	for _, name := range []string{"n1", "n2"} { // as they claim, or are applied again
		if err := b.MayTake(name); err != nil {
			t.Errorf("%s, which has its place: %v", name, err)
		}
	}
	if err := b.MayTake("n3"); err == nil {
		t.Error("a command of root gets a place that is taken")
	}
	done()
	if err := b.MayTake("n3"); err != nil {
		t.Errorf("once the other failed: %v", err)
	}
	b.node("n2", events.Created)
	if err := b.MayTake("n3"); err == nil {
		t.Error("once the other is there")
	}
}

// TestLeaveAgain: a host leaves its site also where a command before was killed once the site had forgotten the host.
func TestLeaveAgain(t *testing.T) {
	dir := testkit.Dir(t, "") // short enough for a socket
	l := layout.New(dir)
	c := &agentconf.Config{Host: "a", Site: "site", Socket: dir + "/agent", Store: agentconf.Store{Embedded: &agentconf.Embedded{Dir: dir + "/s"}}}
	if err := l.Make(); err != nil {
		t.Fatal(err)
	}
	if err := membership.Join(l, membership.Member{Site: "site", Host: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := Leave(t.Context(), c, l, slog.New(slog.NewTextHandler(t.Output(), nil))); err != nil {
		t.Fatal(err)
	}
	if m, err := membership.Read(l); err != nil || m != nil {
		t.Errorf("it belongs to %+v, %v", m, err)
	}
}
