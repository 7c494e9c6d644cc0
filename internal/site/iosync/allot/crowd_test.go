package allot

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"berth/test/testkit"
)

// crowd is a file system of 500 servers with 10,000 nodes, each of which uses 8 servers: 80,000 of 5,000,000 pairs.
type crowd struct {
	demand    Demand
	allocator *Allocator
	now       time.Time
	uses      [][]int           // the nodes that use a server
	numbers   map[string]string // of the orders that servers enforce
	parts     []map[string]Rates
}

func newCrowd() *crowd {
	c := &crowd{now: time.Unix(1_800_000_000, 0), numbers: map[string]string{}, uses: make([][]int, 500), parts: make([]map[string]Rates, 500)}
	for i := range 500 {
		c.demand.Servers = append(c.demand.Servers, fmt.Sprintf("s%03d", i))
	}
	for i := range 10_000 {
		c.demand.Nodes = append(c.demand.Nodes, Want{Node: fmt.Sprintf("n%05d", i), Rates: Rates{1e8}, Weight: 100})
		for k := range 8 {
			s := (i*7 + k*61) % 500
			c.uses[s] = append(c.uses[s], i)
		}
	}
	c.allocator = New("x", c.now)
	return c
}

// reports has all servers report, as they do in half a second: nodes are at work on the servers that they use, and wait on a third of
// them.
func (c *crowd) reports(step int) {
	for i := step % 10; i < 10_000; i += 10 { // a tenth of the nodes leave a server for another one
		old := (i*7 + step/10) % 500
		if at := slices.Index(c.uses[old], i); at >= 0 {
			c.uses[old] = slices.Delete(c.uses[old], at, at+1)
			c.uses[(old+1)%500] = append(c.uses[(old+1)%500], i)
		}
	}
	for k, s := range c.demand.Servers {
		r := Report{Host: s, Filesystem: "fs", Order: c.numbers[s], Nodes: []Use{}}
		used := map[string]bool{}
		for _, i := range c.uses[k] {
			n := c.demand.Nodes[i].Node
			part := 2e5 * float64(1+(i+k+step)%3)
			if p, ok := c.parts[k][n]; ok {
				part = p[ReadBytes] * 1e8
			}
			used[n] = true
			r.Nodes = append(r.Nodes, Use{Node: n, Used: Rates{part * float64((i+k+step)%3) / 2}, Part: Rates{part}})
		}
		for n, p := range c.parts[k] { // those that it was told, and does not use
			if !used[n] {
				r.Nodes = append(r.Nodes, Use{Node: n, Part: Rates{p[ReadBytes] * 1e8}})
			}
		}
		if o := c.allocator.Take(r, &c.demand, c.now); o.Number != "" && o.Number != c.numbers[s] {
			c.numbers[s], c.parts[k] = o.Number, o.Parts
			c.allocator.Take(Report{Host: s, Filesystem: "fs", Order: o.Number}, &c.demand, c.now)
		}
	}
	c.now = c.now.Add(Every)
}

// BenchmarkTake is half a second of the host that has the office: a report of each server.
func BenchmarkTake(b *testing.B) {
	c := newCrowd()
	for step := 0; b.Loop(); step++ {
		c.reports(step)
	}
}

// BenchmarkRound is a round of 80,000 pairs that are at work, while a tenth of the nodes leave a server for another one.
func BenchmarkRound(b *testing.B) {
	c := newCrowd()
	for step := 0; b.Loop(); step++ {
		b.StopTimer()
		c.reports(step)
		b.StartTimer()
		c.allocator.fields["fs"].round("x", c.now)
	}
}

// TestRoundInTime: a round of 10,000 nodes on 500 servers, with 80,000 pairs that are at work, takes 10 ms at most (half of the rounds do),
// and the allocator has at most 128 MiB for them.
func TestRoundInTime(t *testing.T) {
	before := heap()
	c := newCrowd()
	site := heap()
	var took []time.Duration
	steps := 8
	if testkit.Measures() {
		steps = 41 // of a second: pairs are dropped, too
	}
	for step := range steps {
		c.reports(step)
		c.now = c.now.Add(Every)
		began := time.Now()
		c.allocator.fields["fs"].round("x", c.now)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	has := heap() - site
	pairs := len(c.allocator.fields["fs"].kinds[ReadBytes].site.Pairs)
	t.Logf("a round of %d pairs took %v (the slowest of %d: %v), and the allocator and orders have %d MiB beside %d of the site", pairs, took[steps/2], steps, took[steps-1], has>>20, (site-before)>>20)
	if pairs > 250_000 || has > 128<<20 {
		t.Errorf("the allocator keeps %d pairs in %d MiB, of 80,000 that are at work", pairs, has>>20)
	}
	if testkit.Measures() && took[steps/2] > 10*time.Millisecond {
		t.Errorf("a round of %d pairs took %v", pairs, took[steps/2])
	}
	runtime.KeepAlive(c)
}

// heap is the memory that is in use, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
