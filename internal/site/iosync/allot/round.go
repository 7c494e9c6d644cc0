package allot

import (
	"slices"
	"strconv"
	"time"

	"berth/internal/site/iosync/share"
)

// round computes the parts, and numbers the orders of servers whose parts changed anew.
func (f *field) round(name string, now time.Time) {
	heard, changed := make([]bool, len(f.last)), make([]bool, len(f.last))
	for i := range f.last {
		h := &f.last[i]
		heard[i] = h.now.Number != "" && h.order == h.now.Number
		changed[i] = h.now.Number == ""
	}
	for k := range f.kinds {
		f.kinds[k].rest(now)
	}
	f.pair()
	for k := range f.kinds {
		one := &f.kinds[k]
		site := &one.site
		for i := range f.last {
			site.Servers[i].Silent = now.Sub(f.last[i].at) > Silence
		}
		for i := range site.Pairs {
			p, is := &site.Pairs[i], &one.flows[i]
			p.Heard = heard[p.Server] && (f.last[p.Server].failed == nil || !f.last[p.Server].failed[one.names[site.Owner(i)]])
			p.Used, p.Waits = is.most(), slices.Contains(is.waits[:], true)
		}
		site.Round()
		for _, n := range site.Nodes {
			for i := n.First; i < n.Past; i++ {
				p := &site.Pairs[i]
				part := p.Part / n.Allowance
				changed[p.Server] = changed[p.Server] || one.told[i] != part
				one.told[i] = part
			}
		}
	}
	for i := range f.last {
		if h := &f.last[i]; changed[i] {
			h.number++
			h.now = Order{Number: name + "." + strconv.Itoa(h.number), Floors: len(f.last) > Few}
		}
	}
}

// parts are those of one server, as parts of the nodes' allowances, as of the last round. Nodes without a pair are left out.
func (f *field) parts(server int) map[string]Rates {
	parts := map[string]Rates{}
	for k := range f.kinds {
		one := &f.kinds[k]
		for _, pair := range one.site.On(server) {
			node := one.names[one.site.Owner(pair)]
			r := parts[node]
			r[k] = one.told[pair]
			parts[node] = r
		}
	}
	for node, r := range parts { // what it has no pair for
		for k := range r {
			if _, limited := f.kinds[k].at[node]; limited && r[k] == 0 {
				r[k] = share.Floor / float64(len(f.last))
			}
		}
		parts[node] = r
	}
	return parts
}
