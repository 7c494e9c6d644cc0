package allot

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"berth/internal/site/iosync/share"
)

// server is a file server in memory: it enforces the last order that it heard.
type server struct {
	name     string
	order    Order
	enforces map[string]float64 // bytes read a second, by node
	load     map[string]float64
	heard    time.Time
	away     bool // it cannot report
	killed   bool // its agent does not run; the kernel goes on
	unknown  bool // it was told no part
}

// world is a site of servers and an allocator, with a clock of its own.
type world struct {
	t         *testing.T
	now       time.Time
	allocator *Allocator
	servers   []*server
	demand    *Demand
	most      float64 // that was enforced for a node, in parts of its allowance
}

func newWorld(t *testing.T, servers int, nodes map[string]float64) *world {
	t.Helper()
	w := &world{t: t, now: time.Unix(1_800_000_000, 0), demand: &Demand{}}
	for i := range servers {
		s := &server{name: fmt.Sprint("s", i), enforces: map[string]float64{}, load: map[string]float64{}, heard: w.now}
		w.demand.Servers = append(w.demand.Servers, s.name)
		w.servers = append(w.servers, s)
	}
	for _, n := range []string{"a", "b", "c"} {
		if nodes[n] == 0 {
			continue
		}
		w.demand.Nodes = append(w.demand.Nodes, Want{Node: n, Rates: Rates{nodes[n]}, Weight: 100})
		for _, s := range w.servers { // as split.part does
			s.enforces[n] = nodes[n] / float64(servers)
			if servers > Few {
				s.enforces[n] = w.floor(nodes[n])
			}
		}
	}
	w.elect()
	return w
}

// elect makes another allocator, which knows nothing.
func (w *world) elect() { w.allocator = New(fmt.Sprint(w.now.UnixNano()), w.now) }

// play lets time pass.
func (w *world) play(d time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(Every) {
		for _, s := range w.servers {
			if s.killed {
				continue
			}
			if s.away {
				if w.now.Sub(s.heard) > Grace {
					for _, n := range w.demand.Nodes { // as split.Alone does
						s.enforces[n.Node] = min(s.enforces[n.Node], n.Rates[ReadBytes]/float64(len(w.servers)))
					}
				}
				continue
			}
			r := Report{Host: s.name, Filesystem: "fs", Order: s.order.Number, Nodes: []Use{}}
			for _, n := range w.demand.Nodes {
				e := s.enforces[n.Node]
				if _, told := s.order.Parts[n.Node]; len(w.servers) > Few && !told && !s.unknown && s.load[n.Node] == 0 && e < 1.01*w.floor(n.Rates[ReadBytes]) {
					continue // as split.Report does
				}
				r.Nodes = append(r.Nodes, Use{Node: n.Node, Used: Rates{min(e, s.load[n.Node])}, Part: Rates{e}, Unknown: s.unknown})
			}
			for range 2 { // the second one confirms
				o := w.allocator.Take(r, w.demand, w.now)
				s.heard = w.now
				if o.Number == "" || o.Number == s.order.Number {
					break
				}
				s.order, s.unknown = o, false
				for _, n := range w.demand.Nodes {
					if p, ok := o.Parts[n.Node]; ok {
						s.enforces[n.Node] = p[ReadBytes] * n.Rates[ReadBytes]
					} else if o.Floors {
						s.enforces[n.Node] = w.floor(n.Rates[ReadBytes])
					}
				}
				r = Report{Host: s.name, Filesystem: "fs", Order: o.Number}
				w.check()
			}
		}
		w.check()
	}
}

// floor is what a server without a part gives to a node.
func (w *world) floor(rate float64) float64 { return share.Floor * rate / float64(len(w.servers)) }

// reboot makes a server forget, and begin with the floor of each node.
func (w *world) reboot(s *server) {
	s.order, s.unknown = Order{}, true
	for _, n := range w.demand.Nodes {
		s.enforces[n.Node] = w.floor(n.Rates[ReadBytes])
	}
}

// join adds a server that knows nothing.
func (w *world) join() *server {
	s := &server{name: fmt.Sprint("s", len(w.servers)), enforces: map[string]float64{}, load: map[string]float64{}, heard: w.now}
	d := *w.demand
	d.Servers = append(slices.Clone(d.Servers), s.name)
	w.demand, w.servers = &d, append(w.servers, s)
	w.reboot(s)
	return s
}

func (w *world) check() {
	for _, n := range w.demand.Nodes {
		sum := 0.0
		for _, s := range w.servers {
			if floor := w.floor(n.Rates[ReadBytes]); s.enforces[n.Node] < floor*(1-1e-9) && !s.away && !s.killed {
				w.t.Fatalf("%s enforces %g for %s, and the floor is %g", s.name, s.enforces[n.Node], n.Node, floor)
			}
			sum += s.enforces[n.Node]
		}
		w.most = max(w.most, sum/n.Rates[ReadBytes])
	}
}

// got is what a node does on all servers, in parts of what it may.
func (w *world) got(node string) float64 {
	sum := 0.0
	for _, s := range w.servers {
		sum += min(s.load[node], s.enforces[node])
	}
	for _, n := range w.demand.Nodes {
		if n.Node == node {
			return sum / n.Rates[ReadBytes]
		}
	}
	return math.NaN()
}

// TestFollows: the allowance is where the load is within 3 s, also after it moved, and after another host took the office.
func TestFollows(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{4, Few, Few + 1, 40} {
		w := newWorld(t, servers, map[string]float64{"a": 100e6, "b": 10e6})
		w.servers[0].load["a"] = 1e9
		for _, s := range w.servers {
			s.load["b"] = 1e9
		}
		for step, change := range []func(){
			func() {},
			func() { w.servers[0].load["a"], w.servers[3].load["a"] = 0, 1e9 },
			w.elect,
			func() { w.servers[3].load["a"], w.servers[1].load["a"] = 0, 1e9 },
			func() { w.servers[0].away = true; w.servers[2].load["a"] = 1e9 },
		} {
			change()
			w.play(3 * time.Second)
			if a, b := w.got("a"), w.got("b"); a < 0.95 || b < 0.95 {
				t.Errorf("step %d: a got %.3f, b %.3f of what they may", step, a, b)
			}
		}
		if w.most > 1+1e-9 {
			t.Errorf("a node was allowed %g of its allowance", w.most)
		}
	}
}

// TestNever: whichever servers are away, killed and rebooted, and however often the office changes, a node is never allowed more than it
// may and a server's floor. Not tried: a server that is rebooted, or joins, while the agent of another one is dead and the office
// changes: what that one enforces, nobody knows then.
func TestNever(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		servers := 1 + r.IntN(5)
		if seed%2 == 0 {
			servers = Few - 1 + r.IntN(8) // most of them have more servers than pairs
		}
		w := newWorld(t, servers, map[string]float64{"a": 1e6 * (1 + r.Float64()), "b": 1e3, "c": 5e6})
		for range 40 {
			s := w.servers[r.IntN(len(w.servers))]
			switch r.IntN(8) {
			case 7:
				s.killed = !s.killed
			case 6:
				s.order = Order{} // its agent was restarted, and enforces what it did before
			case 0:
				s.away = !s.away
			case 1:
				w.elect()
			default:
				s.load[string("abc"[r.IntN(3)])] = 1e7 * float64(r.IntN(2))
			}
			w.play(time.Duration(1+r.IntN(6)) * Every)
		}
		if w.most > 1+share.Floor+1e-6 {
			t.Fatalf("seed %d: a node was allowed %g of its allowance", seed, w.most)
		}
		for _, s := range w.servers {
			s.away, s.killed = false, false
			s.load["c"] = 1e9
		}
		w.play(12 * time.Second)
		if got := w.got("c"); got < 0.95 {
			t.Fatalf("seed %d: with all servers back, c got %g", seed, got)
		}
	}
}

// TestUnheard: another allocator leaves to a server whose agent is dead what it may have.
func TestUnheard(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{4, Few, Few + 1, 40} {
		w := newWorld(t, servers, map[string]float64{"a": 100e6})
		w.servers[0].load["a"] = 1e9
		w.play(3 * time.Second)
		w.servers[0].killed = true
		w.elect()
		w.servers[1].load["a"] = 1e9
		w.play(12 * time.Second)
		if w.most > 1+share.Floor {
			t.Errorf("a node was allowed %g of its allowance", w.most)
		}
		w.servers[0].killed, w.servers[0].load["a"] = false, 0
		w.play(4 * time.Second)
		if got := w.got("a"); got < 0.95 {
			t.Errorf("when the server is back, a got %g", got)
		}
	}
}

// TestReboot: a server that forgot its parts, and one that joins, begin with floors; then the allowance is where the load is.
func TestReboot(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{3, Few, Few + 1, 40} {
		w := newWorld(t, servers, map[string]float64{"a": 100e6})
		w.servers[0].load["a"] = 1e9
		w.play(3 * time.Second)
		for step, change := range []func(){
			func() { w.reboot(w.servers[1]) },
			func() { w.reboot(w.servers[0]) },
			func() { w.join().load["a"] = 1e9; w.servers[0].load["a"] = 0 },
			func() { // the whole site was without power, and one server stays away
				for _, s := range w.servers {
					w.reboot(s)
				}
				w.servers[2].killed = true
				w.elect()
				w.play(Grace + Silence)
			},
		} {
			change()
			w.play(3 * time.Second)
			want := 0.95
			if step == 3 {
				want = 0.7
			}
			if got := w.got("a"); got < want || w.most > 1+share.Floor {
				t.Errorf("step %d: a got %g, at most %g", step, got, w.most)
			}
		}
	}
}

// TestFailed: where an order could not be enforced, nobody else gets what it frees.
func TestFailed(t *testing.T) {
	t.Parallel()
	d := &Demand{Servers: []string{"s0", "s1"}, Nodes: []Want{{Node: "a", Rates: Rates{100}, Weight: 100}}}
	now := time.Unix(1_800_000_000, 0)
	a := New("x", now)
	take := func(host string, o Order, used, part float64, failed ...string) Order {
		return a.Take(Report{Host: host, Filesystem: "fs", Order: o.Number, Failed: failed, Nodes: []Use{{Node: "a", Used: Rates{used}, Part: Rates{part}}}}, d, now)
	}
	var idle, busy Order
	for range 8 {
		now = now.Add(Every)
		idle = take("s0", idle, 0, 50, "a")
		busy = take("s1", busy, 50, 50)
	}
	if part := busy.Parts["a"][ReadBytes]; part > 0.5 {
		t.Errorf("the other server enforces 50 of 100 still, and this one was told %g", part)
	}
	if o := a.Take(Report{Host: "s0", Filesystem: "any"}, &Demand{}, now); o.Number != "" || len(a.fields) != 1 {
		t.Errorf("a file system that nobody serves: %+v", o)
	}
}

// TestDemandChanges: another allowance keeps the proportions at once; nodes and servers come and go.
func TestDemandChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, map[string]float64{"a": 100})
	w.servers[0].load["a"] = 1e9
	w.play(3 * time.Second)
	w.demand = &Demand{Servers: w.demand.Servers, Nodes: []Want{{Node: "a", Rates: Rates{50}, Weight: 100}, {Node: "b", Rates: Rates{10}, Weight: 100}}}
	for _, s := range w.servers { // as split.part does: parts are of the allowance
		s.enforces["a"] /= 2
		s.enforces["b"] = 5
	}
	w.most = 0
	w.servers[1].load["b"] = 1e9
	w.play(3 * time.Second)
	if a, b := w.got("a"), w.got("b"); a < 0.95 || b < 0.95 || w.most > 1+1e-9 {
		t.Errorf("a got %g, b %g, most was %g", a, b, w.most)
	}
	if o := w.allocator.Take(Report{Host: "stranger", Filesystem: "fs"}, w.demand, w.now); o.Number != "" {
		t.Errorf("a host that serves nothing was told %+v", o)
	}
}

// TestFewPairs: a node has pairs with the servers that it used in the last while, and with Few at least; where its load moves, it has its
// allowance within 3 s, and never more than that.
func TestFewPairs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 60, map[string]float64{"a": 100e6, "b": 100e6})
	pairs := func() (a, b int) {
		n := w.allocator.fields["fs"].kinds[ReadBytes].site.Nodes
		return n[0].Past - n[0].First, n[1].Past - n[1].First
	}
	for i := range w.servers {
		w.servers[i].load["a"], w.servers[(i+59)%60].load["a"] = 1e9, 0
		w.play(3 * time.Second)
		if got := w.got("a"); got < 0.95 {
			t.Errorf("server %d: a got %.3f of what it may", i, got)
		}
		w.play(while / 6)
		if a, b := pairs(); a > 3*Few || b != Few {
			t.Fatalf("server %d: a has %d pairs, b, which rests, %d", i, a, b)
		}
	}
	w.play(2 * while)
	if a, b := pairs(); a != Few || b != Few {
		t.Errorf("at the end a has %d pairs, b %d; at work on one server", a, b)
	}
	if w.most > 1+1e-9 {
		t.Errorf("a node was allowed %g of its allowance", w.most)
	}
}

// TestSteady: a node that reads at its own pace does not look like one that waits, and parts do not swing: on a full server another one
// has what it leaves.
func TestSteady(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a := New("office", now)
	d := &Demand{Servers: []string{"s"}, Capacity: map[string]Rates{"s": {24e6}}, Nodes: []Want{
		{Node: "low", Rates: Rates{24e6}, Weight: 100}, {Node: "top", Rates: Rates{24e6}, Weight: 100, Class: 1},
	}}
	part, order, sum := map[string]float64{"low": 24e6, "top": 24e6}, "", 0.0
	for round := range 60 {
		now = now.Add(Every)
		r := Report{Host: "s", Filesystem: "f", Order: order}
		for node, load := range map[string]float64{"low": 1e9, "top": 8e6} {
			r.Nodes = append(r.Nodes, Use{Node: node, Used: Rates{min(load, part[node])}, Part: Rates{part[node]}})
		}
		if o := a.Take(r, d, now); o.Number != "" {
			order = o.Number
			for node, p := range o.Parts {
				part[node] = p[0] * 24e6
			}
			a.Take(Report{Host: "s", Filesystem: "f", Order: order}, d, now.Add(time.Millisecond))
		}
		if round >= 20 {
			sum += part["low"] / 40
		}
	}
	if sum < 14e6 {
		t.Errorf("low has %.1f MB/s, and top leaves 16 of 24", sum/1e6)
	}
}
