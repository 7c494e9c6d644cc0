package allot

import (
	"cmp"
	"math"
	"slices"
	"time"

	"berth/internal/site/iosync/share"
)

// kind is one kind of rates: only nodes with a limit of this kind are in it. Its pairs are those of a node and a server that are more
// than a floor; of each node they are sorted by server.
type kind struct {
	site  share.Site
	names []string       // of site.Nodes
	at    map[string]int // the number in site.Nodes
	flows []flow         // by pair
	told  []float64      // by pair: the part of the allowance that the server shall enforce, as of the last round
	fresh []fresh        // pairs to be made

	before struct { // work space of mend
		pairs []share.Pair
		flows []flow
		told  []float64
	}
}

// flow is what the last reports of a server say of a node.
type flow struct {
	used  [some]float64 // the newest first
	waits [some]bool
	busy  int64 // when it was at work the last time: nanoseconds since 1970
}

// fresh is a pair that is to be made.
type fresh struct {
	node, server int
	most         float64 // that the server enforces for the node now
	flow         flow
}

// most is the largest figure of the last reports.
func (w *flow) most() float64 { return slices.Max(w.used[:]) }

// take takes the figures of a report.
func (w *flow) take(used, part float64, now time.Time) {
	w.used[0], w.waits[0] = used, used >= waits*cmp.Or(part, math.Inf(1))
	if used > 0 {
		w.busy = now.UnixNano()
	}
}

// shift makes room for the figures of another report.
func (w *flow) shift() {
	copy(w.used[1:], w.used[:])
	copy(w.waits[1:], w.waits[:])
	w.used[0], w.waits[0] = 0, false
}

// find finds the pair of a node and a server.
func (one *kind) find(node, server int) (pair int, ok bool) {
	n := &one.site.Nodes[node]
	i, ok := slices.BinarySearchFunc(one.site.Pairs[n.First:n.Past], server, func(p share.Pair, server int) int { return cmp.Compare(p.Server, server) })
	return n.First + i, ok
}

// become returns the kind for another demand. started is true if its pairs are known; moved has the new numbers of servers, and elsewhere
// is the part of servers that nobody heard of that are still there.
func (one *kind) become(d *Demand, k int, started bool, moved []int, elsewhere float64) kind {
	is := kind{site: share.Site{Servers: make([]share.Server, len(d.Servers))}, at: map[string]int{}}
	for i, s := range d.Servers {
		is.site.Servers[i].Capacity = d.Capacity[s][k]
	}
	for _, w := range d.Nodes {
		if w.Rates[k] <= 0 {
			continue
		}
		n := share.Node{Allowance: w.Rates[k], Weight: w.Weight, Class: w.Class, First: len(is.site.Pairs)}
		at, known := one.at[w.Node]
		if known = known && started; known {
			old := one.site.Nodes[at]
			n.Elsewhere = old.Elsewhere * elsewhere * n.Allowance / old.Allowance
			for i := old.First; i < old.Past; i++ {
				p := one.site.Pairs[i]
				if p.Server = moved[p.Server]; p.Server < 0 {
					continue
				}
				p.Part, p.Most = p.Part*n.Allowance/old.Allowance, p.Most*n.Allowance/old.Allowance
				is.site.Pairs, is.flows = append(is.site.Pairs, p), append(is.flows, one.flows[i])
			}
		} else if len(d.Servers) <= Few { // each server begins with an equal part
			for i := range d.Servers {
				is.site.Pairs, is.flows = append(is.site.Pairs, share.Pair{Server: i, Part: n.Allowance / float64(len(d.Servers))}), append(is.flows, flow{})
			}
		}
		n.Past = len(is.site.Pairs)
		n.Others = len(d.Servers) - (n.Past - n.First)
		is.at[w.Node] = len(is.names)
		is.site.Nodes, is.names = append(is.site.Nodes, n), append(is.names, w.Node)
	}
	is.told = make([]float64, len(is.site.Pairs))
	is.site.Begin()
	return is
}

// look notes what the last report of a server says of each node. Nodes that are at work, or that have more than a floor, are to have a
// pair with it.
func (f *field) look(server int, now time.Time) {
	h := &f.last[server]
	for k := range f.kinds {
		one := &f.kinds[k]
		for _, pair := range one.site.On(server) {
			one.flows[pair].shift()
		}
		for _, u := range h.reported {
			at, ok := one.at[u.Node]
			if !ok {
				continue
			}
			if pair, ok := one.find(at, server); ok {
				one.flows[pair].take(u.Used[k], u.Part[k], now)
				continue
			}
			n := one.site.Nodes[at]
			most := math.Min(u.Part[k], n.Allowance)
			if h.failed[u.Node] {
				most = n.Allowance
			}
			if u.Used[k] > 0 || most > math.Max(1, n.Floor()) {
				p := fresh{node: at, server: server, most: most}
				p.flow.take(u.Used[k], u.Part[k], now)
				one.fresh = append(one.fresh, p)
			}
		}
	}
}

// pair makes the pairs that are to be made, and drops those of nodes that are not at work there and have no more than a floor.
func (f *field) pair() {
	for k := range f.kinds {
		one := &f.kinds[k]
		for at, n := range one.site.Nodes { // what nobody uses is spread over some servers, which are others for each node
			missing := min(Few, len(f.last)) - (n.Past - n.First)
			for i := 0; missing > 0 && i < len(f.last); i++ {
				server := (at + i*max(1, len(f.last)/Few) + i/Few) % len(f.last)
				if _, ok := one.find(at, server); !ok {
					one.fresh = append(one.fresh, fresh{node: at, server: server})
					missing--
				}
			}
		}
		one.mend()
	}
}

// mend puts fresh pairs in, and takes those out that are not kept.
func (one *kind) mend() {
	if len(one.fresh) == 0 && !slices.ContainsFunc(one.site.Nodes, func(n share.Node) bool {
		return slices.ContainsFunc(one.site.Pairs[n.First:n.Past], func(p share.Pair) bool { return spent(p, n.Floor()) })
	}) {
		return
	}
	coming := merged(one.fresh)
	was, flows, told := one.site.Pairs, one.flows, one.told
	one.site.Pairs, one.flows, one.told, one.fresh = one.before.pairs[:0], one.before.flows[:0], one.before.told[:0], one.fresh[:0]
	one.before.pairs, one.before.flows, one.before.told = was, flows, told
	for at := range one.site.Nodes {
		n := &one.site.Nodes[at]
		floor, all := n.Floor(), n.Past-n.First+n.Others
		old, past := n.First, n.Past
		n.First = len(one.site.Pairs)
		for old < past || len(coming) > 0 && coming[0].node == at {
			if len(coming) > 0 && coming[0].node == at && (old == past || coming[0].server < was[old].Server) {
				c := coming[0]
				coming = coming[1:]
				p, as := share.Pair{Server: c.server, Part: floor, Most: math.Max(floor, c.most)}, floor/n.Allowance
				if p.Most > floor {
					as = 0 // it is told
				}
				one.site.Pairs, one.flows, one.told = append(one.site.Pairs, p), append(one.flows, c.flow), append(one.told, as)
				continue
			}
			if !spent(was[old], floor) {
				one.site.Pairs, one.flows, one.told = append(one.site.Pairs, was[old]), append(one.flows, flows[old]), append(one.told, told[old])
			}
			old++
		}
		n.Past = len(one.site.Pairs)
		n.Others = all - (n.Past - n.First)
	}
	one.site.Begin()
}

// merged sorts fresh pairs by node and server, and has each once: with the latest flow, and the most of what was reported.
func merged(all []fresh) (once []fresh) {
	slices.SortStableFunc(all, func(a, b fresh) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.server, b.server))
	})
	for _, p := range all {
		last := len(once) - 1
		if last < 0 || once[last].node != p.node || once[last].server != p.server {
			once = append(once, p)
			continue
		}
		once[last].most = math.Max(once[last].most, p.most)
		if p.flow.busy > once[last].flow.busy {
			once[last].flow = p.flow
		}
	}
	return once
}

// spent reports whether a pair is not needed any more: the server confirmed that the node has its floor.
func spent(p share.Pair, floor float64) bool {
	return p.Idle && p.Heard && math.Max(p.Part, p.Most) <= floor*(1+1e-9)
}

// rest marks the pairs of nodes that are at work elsewhere only, so that these get floors; Few of each node stay.
func (one *kind) rest(now time.Time) {
	since := now.Add(-while).UnixNano()
	for _, n := range one.site.Nodes {
		over := n.Past - n.First - Few
		for i := n.First; i < n.Past; i++ {
			idle := over > 0 && one.flows[i].busy < since
			one.site.Pairs[i].Idle = idle
			if idle {
				over--
			}
		}
	}
}
