package allot

import (
	"cmp"
	"math"
	"strconv"
	"time"
)

// look notes what the last reports of a server say of each node: a round, which has all pairs, looks nothing up by name.
func (f *field) look(server int) {
	for k := range f.kinds {
		one := &f.kinds[k]
		for at, n := range one.site.Nodes {
			is := flow{}
			for _, uses := range f.last[server].uses {
				u := uses[one.names[at]]
				is.used = math.Max(is.used, u.Used[k])
				is.waits = is.waits || u.Used[k] >= waits*cmp.Or(u.Part[k], math.Inf(1))
			}
			one.flows[n.First+server] = is
		}
	}
}

// round computes the parts, and numbers the orders of servers whose parts changed anew.
func (f *field) round(name string, now time.Time) {
	heard, changed := make([]bool, len(f.last)), make([]bool, len(f.last))
	for i := range f.last {
		h := &f.last[i]
		heard[i] = h.now.Number != "" && h.order == h.now.Number
		changed[i] = h.now.Number == ""
	}
	for k := range f.kinds {
		one := &f.kinds[k]
		site := &one.site
		for i := range f.last {
			site.Servers[i].Silent = now.Sub(f.last[i].at) > Silence
		}
		for at, n := range site.Nodes {
			for i := range f.last {
				p, is := &site.Pairs[n.First+i], one.flows[n.First+i]
				p.Heard = heard[i] && (f.last[i].failed == nil || !f.last[i].failed[one.names[at]])
				p.Used, p.Waits = is.used, is.waits
			}
		}
		site.Round()
		for _, n := range site.Nodes {
			for i := range f.last {
				part := site.Pairs[n.First+i].Part / n.Allowance
				changed[i] = changed[i] || one.told[n.First+i] != part
				one.told[n.First+i] = part
			}
		}
	}
	for i := range f.last {
		if h := &f.last[i]; changed[i] {
			h.number++
			h.now = Order{Number: name + "." + strconv.Itoa(h.number)}
		}
	}
}

// parts are those of one server, as parts of the nodes' allowances, as of the last round.
func (f *field) parts(server int) map[string]Rates {
	parts := map[string]Rates{}
	for k := range f.kinds {
		one := &f.kinds[k]
		for at, n := range one.site.Nodes {
			r := parts[one.names[at]]
			r[k] = one.told[n.First+server]
			parts[one.names[at]] = r
		}
	}
	return parts
}
