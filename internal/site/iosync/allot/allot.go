// Package allot is the allocator of VNode Sync: file servers tell it what nodes do, and it tells them which parts of the nodes'
// allowances they shall enforce. One host of the site does it at a time; package share computes the parts.
package allot

import (
	"math"
	"reflect"
	"sync"
	"time"

	"berth/internal/site/iosync/share"
)

// The kinds of rates of a node, in the order of Rates.
const (
	ReadBytes = iota
	ReadOps
	WriteBytes
	WriteOps
	kinds
)

// Rates is a figure for each kind: bytes or operations a second, or parts of them.
type Rates [kinds]float64

// Use is a node's I/O on a server.
type Use struct {
	Node string `json:"node"`
	Used Rates  `json:"used"` // a second, since the report before
	Part Rates  `json:"part"` // the limit that the server enforces; 0: none
	// Unknown: the server was not told its part, and does not know the parts of others. It enforces a floor.
	Unknown bool `json:"unknown,omitempty"`
}

// Report is a file server's report on the nodes of one file system.
type Report struct {
	Host       string `json:"host"`
	Filesystem string `json:"filesystem"`
	Order      string `json:"order,omitempty"` // number of the last order, which is enforced
	// Nodes are those that it was told a part of, or that were at work; other nodes have floors. nil: as it said before; the report only
	// confirms the order.
	Nodes []Use `json:"nodes,omitzero"`
	// Failed are nodes for which it is not enforced.
	Failed []string `json:"failed,omitempty"`
}

// Order tells a server which parts to enforce.
type Order struct {
	Number string           `json:"number,omitempty"` // "": nothing yet, go on as before
	Parts  map[string]Rates `json:"parts,omitempty"`  // by node: parts of its allowance on all servers together, up to 1
	Floors bool             `json:"floors,omitempty"` // nodes that are not among Parts have floors
}

// Want is the allowance of a node on all servers of a file system together.
type Want struct {
	Node   string
	Rates  Rates // 0: no limit
	Weight float64
	Class  int // on a full server, higher ones go first
}

// Demand is a file system as the site knows it.
type Demand struct {
	Servers  []string         // sorted
	Capacity map[string]Rates // of those of which it is known; 0: it is not
	Nodes    []Want           // sorted by name
}

// The times of the allocator.
const (
	// Every is the time between two reports of a server.
	Every = 500 * time.Millisecond
	// Silence is how long a server may not report before the allocator assumes that it enforces the most that it may have.
	Silence = 3 * Every
	// Grace is how long a server that gets no orders keeps its parts; afterwards none of them is above an equal part. A new
	// allocator waits longer than that for servers, before it splits what the silent ones leave.
	Grace = 5 * time.Second
	// between is the least time between two computations.
	between = 100 * time.Millisecond
)

// Few is the number of servers up to which each node has a pair with each of them. Where there are more, it has pairs with those that it
// used in the last while, and with others until these are Few together. On servers without a pair it has a floor: share.Floor in
// equal parts.
const (
	Few   = 8
	while = 30 * time.Second
)

// waits is the part of its limit from which on a node counts as one that would do more. The kernel lets requests of up to some MiB
// through at once, so the I/O counted in half a second differs from the I/O allowed in it: the largest of some reports counts.
const (
	waits = 0.9
	some  = 3
)

// Allocator is the allocator of a site while this host has the office.
type Allocator struct {
	begun time.Time
	name  string // begins its orders' numbers: no other allocator's order has them

	mu     sync.Mutex
	fields map[string]*field // by file system
}

// New returns the allocator of a host that has just got the office. name must be unique to this host and time.
func New(name string, now time.Time) *Allocator {
	return &Allocator{begun: now, name: name, fields: map[string]*field{}}
}

// field is one file system.
type field struct {
	demand  *Demand
	index   map[string]int // of servers
	last    []heard        // by server
	started bool
	at      time.Time // of the last computation
	kinds   [kinds]kind
}

// heard has the last reports of a server.
type heard struct {
	at       time.Time // of its last report; zero: it never reported
	order    string    // that it confirmed, but for the nodes that failed
	failed   map[string]bool
	now      Order // that it shall enforce; its parts are filled in when it is told
	reported []Use // of its last report that was not only a confirmation
	number   int
}

// Take takes a report, and returns the parts that the server shall enforce. demand has the present allowances on the file system;
// the caller does not change it afterwards.
func (a *Allocator) Take(r Report, demand *Demand, now time.Time) Order {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.fields[r.Filesystem]
	if f == nil {
		if len(demand.Servers) == 0 {
			return Order{} // any name
		}
		f = &field{}
		a.fields[r.Filesystem] = f
	}
	if f.demand != demand { // often the same one
		if f.demand == nil || !reflect.DeepEqual(f.demand, demand) {
			f.become(demand)
		}
		f.demand = demand
	}
	i, ok := f.index[r.Host]
	if !ok {
		return Order{} // the site does not know yet that it serves this
	}
	h := &f.last[i]
	if r.Nodes == nil && h.reported == nil {
		return Order{} // it confirms the order of another allocator, and does not say which parts that has
	}
	first := h.at.IsZero()
	h.take(r, now)
	if f.started && r.Nodes != nil {
		f.look(i, now)
	}
	switch {
	case !f.started && !f.begin(a.begun, now):
		return Order{}
	case first:
		f.pair()
		f.takeReported(i)
		f.assume()
		f.at = time.Time{} // its order follows from an assumption
	case r.Nodes != nil && r.Order != h.now.Number:
		f.raiseMost(i)
	}
	if now.Sub(f.at) >= between {
		f.at = now
		f.round(a.name, now)
	}
	if h.now.Number != "" && h.now.Parts == nil {
		h.now.Parts = f.parts(i)
	}
	return h.now
}

// become takes over another demand: parts of nodes and servers that are still there stay in proportion.
func (f *field) become(d *Demand) {
	if f.started {
		f.pair() // those of the last reports
	}
	was := *f
	f.demand, f.index, f.last = d, map[string]int{}, make([]heard, len(d.Servers))
	moved := make([]int, len(was.last)) // the numbers that servers have now; -1: it is gone
	for i := range moved {
		moved[i] = -1
	}
	unheard := 0.0
	for i, s := range d.Servers {
		f.index[s] = i
		if old, ok := was.index[s]; ok {
			f.last[i] = was.last[old]
			f.last[i].now.Number = "" // it is told anew
			moved[old] = i
			if f.last[i].at.IsZero() {
				unheard++
			}
		}
	}
	left := 0.0 // of what servers that nobody heard of may enforce: the part of those that are still there
	for _, h := range was.last {
		if h.at.IsZero() {
			left++
		}
	}
	left = unheard / math.Max(1, left)
	for k := range f.kinds {
		f.kinds[k] = was.kinds[k].become(d, k, was.started, moved, left)
	}
	if f.started {
		f.pair()
	}
}

// take keeps the report of a server.
func (h *heard) take(r Report, now time.Time) {
	h.at, h.order, h.failed = now, r.Order, nil
	for _, node := range r.Failed {
		if h.failed == nil {
			h.failed = map[string]bool{}
		}
		h.failed[node] = true
	}
	if r.Nodes != nil {
		h.reported = r.Nodes
	}
}

// begin takes over the parts that servers enforce, which another allocator ordered. It waits for reports of all servers, but
// not for ever.
func (f *field) begin(begun, now time.Time) bool {
	for _, h := range f.last {
		if h.at.IsZero() && now.Sub(begun) < Grace+Silence {
			return false
		}
	}
	f.started = true
	for i := range f.last {
		f.look(i, now)
	}
	f.pair()
	for i := range f.last {
		f.takeReported(i)
	}
	f.assume()
	return true
}

// each calls do with each pair of a server that it reported a limit for.
func (f *field) each(server, k int, do func(p *share.Pair, u Use, allowance float64)) {
	one := &f.kinds[k]
	for _, u := range f.last[server].reported {
		if at, ok := one.at[u.Node]; ok && u.Part[k] > 0 {
			if i, ok := one.find(at, server); ok {
				do(&one.site.Pairs[i], u, one.site.Nodes[at].Allowance)
			}
		}
	}
}

// takeReported takes the limits that a server reports to enforce, in place of the assumed ones.
func (f *field) takeReported(server int) {
	for k := range f.kinds {
		f.each(server, k, func(p *share.Pair, u Use, allowance float64) {
			p.Part = math.Min(u.Part[k], allowance)
			p.Most = p.Part
			if f.last[server].failed[u.Node] { // it may enforce its former limit
				p.Most = allowance
			}
		})
	}
}

// raiseMost raises the most that a server may enforce to the limits that it reports, while these differ from its orders, for
// example because its agent was restarted.
func (f *field) raiseMost(server int) {
	for k := range f.kinds {
		f.each(server, k, func(p *share.Pair, u Use, allowance float64) {
			p.Most = math.Max(p.Most, math.Min(u.Part[k], allowance))
		})
	}
}

// assume sets what servers that never reported may enforce: the former allocator gave them at most what the others do not have. For a
// server that does not know its part, an equal part is assumed.
func (f *field) assume() {
	unheard := 0
	for i := range f.last {
		if f.last[i].at.IsZero() {
			unheard++
		}
	}
	for k := range f.kinds {
		one := &f.kinds[k]
		unknown := make([]float64, len(one.site.Nodes)) // how many servers do not know the node's part
		for i := range f.last {
			for _, u := range f.last[i].reported {
				if at, ok := one.at[u.Node]; ok && u.Unknown {
					unknown[at]++
				}
			}
		}
		for at := range one.site.Nodes {
			n := &one.site.Nodes[at]
			n.Elsewhere = 0
			if unheard == 0 {
				continue
			}
			floor, equal := n.Floor(), n.Allowance/float64(len(f.last))
			left := n.Allowance - floor*float64(len(f.last)) - (equal-floor)*unknown[at]
			for i := n.First; i < n.Past; i++ {
				p := &one.site.Pairs[i]
				if f.last[p.Server].at.IsZero() {
					p.Part, p.Most = floor, floor
				} else {
					left -= math.Max(0, math.Max(p.Most, p.Part)-floor)
				}
			}
			n.Elsewhere = math.Max(0, left)
		}
	}
}
