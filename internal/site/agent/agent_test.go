package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/node"
	"berth/internal/node/events"
	"berth/internal/site/agentconf"
	"berth/internal/site/store"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// bed is an agent on a root of its own, whose nodes are files: the kernel knows nothing of them.
type bed struct {
	*Agent
	t      *testing.T
	memory *store.Memory // another client
}

func newBed(t *testing.T, memory *store.Memory) *bed {
	t.Helper()
	l := layout.New(t.TempDir())
	c := &agentconf.Config{Host: "a", Address: "a:7611", Site: "site", Slots: 10}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	return &bed{New(c, l, node.Open(l, node.Beside{}), memory.Client(), log), t, memory}
}

// run runs what tells the site of this host, until the test ends.
func (b *bed) run() {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{}, 4)
	go func() { b.attend(ctx); ended <- struct{}{} }()
	go func() { _ = b.followEvents(ctx); ended <- struct{}{} }()
	go func() { _ = b.followFolders(ctx); ended <- struct{}{} }() // also what was made before the events are followed
	go func() { _ = b.view.follow(ctx, b.store); ended <- struct{}{} }()
	b.t.Cleanup(func() {
		stop()
		for range 4 {
			<-ended
		}
	})
}

// node writes the files of a node that is not running, and its event.
func (b *bed) node(name, event string) {
	b.t.Helper()
	WriteNode(b.t, b.layout, name, event)
}

// WriteNode writes the files of a node that is not running, and its event.
func WriteNode(t testing.TB, l layout.Layout, name, event string) {
	t.Helper()
	dir := l.Node(name).Lib
	if event == events.Removed {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	} else {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		spec := fmt.Sprintf(`{"name":%q,"image":"host","labels":{"berth.owner":"slurm"}}`, name)
		files := map[string]string{
			"spec.json":   fmt.Sprintf(`{"applied":%s,"now":%s}`, spec, spec),
			"status.json": fmt.Sprintf(`{"name":%q,"state":"stopped","image":"host","addresses":["10.0.0.9"],"labels":{"berth.owner":"slurm"}}`, name),
		}
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	f := events.File{Dir: l.Events()}
	if err := f.Append([]events.Event{{Time: time.Now(), Node: name, Event: event}}, false); err != nil {
		t.Fatal(err)
	}
}

// becomes waits until the store says of this host what is wanted, and returns how long that took.
func (b *bed) becomes(want string) time.Duration {
	b.t.Helper()
	began, got := time.Now(), ""
	for time.Since(began) < testkit.Bound() {
		all, _, err := b.memory.List(b.t.Context(), store.Root)
		if err != nil {
			b.t.Fatal(err)
		}
		var text []string
		for _, e := range all {
			var v struct {
				Owner, Phase string
				Free, Nodes  int
				Drained      time.Time
			}
			if err := json.Unmarshal(e.Value, &v); err != nil {
				b.t.Fatal(err)
			}
			s := strings.TrimPrefix(e.Key, store.Root)
			switch {
			case strings.HasPrefix(s, "nodes/"):
				s += " " + v.Owner + " " + v.Phase
			case strings.HasPrefix(s, "hosts/"):
				s += fmt.Sprintf(" %d nodes %d free", v.Nodes, v.Free)
			}
			text = append(text, s)
		}
		if got = strings.Join(text, "\n"); got == want {
			return time.Since(began)
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.t.Fatalf("the store says\n%s\nwant\n%s", got, want)
	return 0
}

// TestTells: the store has the nodes of this host as they are: at the start, after each event, and after it was away, also
// when it took the host for dead meanwhile.
func TestTells(t *testing.T) {
	memory := store.NewMemory()
	wrong := []store.Op{{Key: store.Nodes + "a/ghost", Value: []byte(`{"phase":"running"}`)}, {Key: store.Nodes + "b/other", Value: []byte(`{"phase":"running"}`)}}
	if _, err := memory.Commit(t.Context(), nil, wrong); err != nil {
		t.Fatal(err)
	}
	b := newBed(t, memory)
	b.node("n1", events.Created)
	b.run()
	b.becomes("hosts/a 1 nodes 9 free\nmembers/a\nnodes/a/n1 slurm stopped\nnodes/b/other  running")
	b.node("n2", events.Created)
	b.becomes("hosts/a 2 nodes 8 free\nmembers/a\nnodes/a/n1 slurm stopped\nnodes/a/n2 slurm stopped\nnodes/b/other  running")
	testkit.Eventually(t, "the agent's own view follows the store", func() bool { return count[HostRecord](b.view, store.Hosts) == 1 })

	back := memory.Away()
	b.node("n1", events.Removed)
	b.node("n3", events.Created)
	testkit.Eventually(t, "it tries to tell, and cannot", func() bool { return b.awayText() != "" }) // store.Patience
	if hosts := count[HostRecord](b.view, store.Hosts); hosts != 1 {
		t.Errorf("while the store is away %d hosts are known", hosts)
	}
	back()
	took := b.becomes("hosts/a 2 nodes 8 free\nmembers/a\nnodes/a/n2 slurm stopped\nnodes/a/n3 slurm stopped\nnodes/b/other  running")
	if testkit.Measures() && took > 5*time.Second {
		t.Errorf("caught up after %s", took)
	}
	b.store.(*store.Memory).Expire()
	b.becomes("hosts/a 2 nodes 8 free\nmembers/a\nnodes/a/n2 slurm stopped\nnodes/a/n3 slurm stopped\nnodes/b/other  running")
	testkit.Eventually(t, "the agent says that it is back", func() bool { return b.awayText() == "" })
}

func count[T any](v *View, prefix string) (n int) {
	each(v, prefix, func([]string, T) { n++ })
	return n
}

// TestDrain: a drained host refuses new nodes, also while the store is away; nobody forgets a host that lives.
func TestDrain(t *testing.T) {
	memory := store.NewMemory()
	b := newBed(t, memory)
	b.node("n1", events.Created)
	b.run()
	b.becomes("hosts/a 1 nodes 9 free\nmembers/a\nnodes/a/n1 slurm stopped")
	for _, c := range []struct {
		host    string
		on      bool
		changed bool
		kind    refuse.Kind
	}{{"a", true, true, 0}, {"a", true, false, 0}, {"b", true, false, refuse.NotFound}} {
		changed, err := b.Drain(t.Context(), c.host, c.on)
		if changed != c.changed || refuse.KindOf(err) != c.kind {
			t.Errorf("drain %s: %v, %v", c.host, changed, err)
		}
	}
	testkit.Eventually(t, "the host is drained", func() bool { return b.MayTake("n2") != nil })
	testkit.Eventually(t, "the agent has heard of the host and of its drain, which come apart", func() bool {
		hosts, _, err := b.Hosts(t.Context())
		return err == nil && len(hosts) == 1 && hosts[0].Alive && hosts[0].Drained
	})
	back := memory.Away()
	if err := b.MayTake("n2"); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "berth host undrain a") {
		t.Errorf("a new node on a drained host: %v", err)
	}
	if _, err := b.Drain(t.Context(), "a", false); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("undrain while the store is away: %v", err)
	}
	hosts, stale, err := b.Hosts(t.Context())
	if err != nil || len(hosts) != 1 || !hosts[0].Drained || !hosts[0].Alive || stale == "" {
		t.Errorf("while the store is away: %+v, %q, %v", hosts, stale, err)
	}
	back()
	if changed, err := b.Drain(t.Context(), "a", false); !changed || err != nil {
		t.Errorf("undrain: %v, %v", changed, err)
	}
	testkit.Eventually(t, "the host takes new nodes again", func() bool { return b.MayTake("n2") == nil })
	if err := b.Forget(t.Context(), "a"); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("forget a host that lives: %v", err)
	}
	gone := []store.Op{
		{Key: store.Members + "b", Value: []byte(`{}`)},
		{Key: store.Nodes + "b/x", Value: []byte(`{}`)},
		{Key: store.Claims + "name/x", Value: []byte(`{"host":"b","node":"x"}`)},
		{Key: store.Claims + "name/n1", Value: []byte(`{"host":"a","node":"n1"}`)},
	}
	if _, err := memory.Commit(t.Context(), nil, gone); err != nil {
		t.Fatal(err)
	}
	if err := b.Forget(t.Context(), "b"); err != nil {
		t.Error(err)
	}
	b.becomes("claims/name/n1\nhosts/a 1 nodes 9 free\nmembers/a\nnodes/a/n1 slurm stopped")
	if err := b.Forget(t.Context(), "b"); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("forget a host that is not there: %v", err)
	}
}
