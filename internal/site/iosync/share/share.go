// Package share splits each node's allowance of I/O on a file system over the servers of the file system, by where the node's load goes.
//
// It is a pure function that is called once a round (twice a second). Each round the servers say for each node what it did, whether
// it would have done more, and which part they enforce; the function says which parts they shall enforce next:
//
//   - A node's parts are max–min fair over its servers: a server gets what the node can use there, those that could use more get the
//     same, and what nobody uses is spread, so that load that moves finds room at once. No part is below a floor.
//   - Where a server's capacity is known, the parts there are together never more, but for floors: higher classes get what they want
//     first, within a class it is shared by weight (weighted max–min, as in Bertsekas and Gallager, Data Networks, section 6.5), and
//     what nobody wants is spread.
//   - A part grows only by what other servers have confirmed to have given up. So the parts that are enforced are together never above the
//     allowance, except after the allowance itself was lowered, for as long as the servers take to hear of it, and by the floors of
//     servers that answer (2 % of the allowance at most) while silent ones hold all of it. A server that is silent keeps the most that it
//     may enforce.
//   - Small changes are left out: noise in what was used moves nothing.
//   - A node needs no pair with a server that has its floor, and that it does not use: where there are many servers, most pairs are left out.
package share

import (
	"math"
	"slices"
)

// The constants of the split.
const (
	// Floor is the smallest part of a node on a server, in equal parts of the allowance: with 4 servers, a 200th of it.
	Floor = 0.02
	// Headroom is how much more than before a node may do on a server where it did not reach its part, before others get the rest. A
	// node that uses just as much as before must not look like one that waits (allot takes 0.9 of its part for that), or parts swing.
	Headroom = 1.2
	// Still is the largest change that is left out, in parts of the allowance.
	Still = 0.01
)

// Node has the allowance of one node on a file system. Its pairs lie one behind the other in Site.Pairs.
type Node struct {
	Allowance   float64 // a second, on all servers together: bytes or operations
	Weight      float64 // its share of a server that is full, against others of its class
	Class       int     // on a full server, higher classes get all that they want first
	First, Past int     // its pairs: Pairs[First:Past], sorted by server
	Others      int     // servers on which it has no pair: each of them enforces a floor
	Elsewhere   float64 // what servers that nobody heard of may enforce together, besides the floors
}

// Floor is the node's part on a server below which it never is.
func (n Node) Floor() float64 { return Floor * n.Allowance / float64(n.Past-n.First+n.Others) }

// kept is what the node's pairs have together.
func (n Node) kept() float64 {
	if n.Others == 0 {
		return n.Allowance - n.Elsewhere
	}
	return n.Allowance - n.Elsewhere - float64(n.Others)*n.Floor()
}

// Server is one file server.
type Server struct {
	Capacity float64 // a second; 0: more than all want
	Silent   bool    // it did not report in this round
}

// Pair is a node on a server.
type Pair struct {
	Server int
	Used   float64 // the node's I/O there a second, since the last round
	Waits  bool    // it would have done more
	Heard  bool    // the server enforces Part: it said so after it was told
	Idle   bool    // the node is at work elsewhere only: it gets its floor here
	Part   float64 // the part that the server shall enforce: Round replaces it
	Most   float64 // the most that it may enforce now, told by now or before: Round keeps it
}

// Site is a file system with its servers and the nodes that use it.
type Site struct {
	Nodes   []Node
	Servers []Server
	Pairs   []Pair

	want  []float64 // of each pair: what the node can use there
	most  []float64 // of each pair: what the server's capacity leaves for it
	order []int     // pairs by server
	owner []int     // the node of each pair
	first []int     // the first of a server's in order
	few   []float64 // work space of one node or server
}

// Begin is called at first, and after nodes, servers or pairs were added or removed, or a class was changed. A node that has no
// part anywhere gets equal parts; a pair that is new for a known node begins with none, or with its floor, and gets what others give up.
func (s *Site) Begin() {
	s.byServer()
	for _, n := range s.Nodes {
		if slices.ContainsFunc(s.Pairs[n.First:n.Past], func(p Pair) bool { return p.Part > 0 }) {
			continue
		}
		for i := n.First; i < n.Past; i++ {
			s.Pairs[i].Part = n.kept() / float64(n.Past-n.First)
		}
	}
}

// Round replaces the parts of all pairs.
func (s *Site) Round() {
	s.want, s.most = sized(s.want, len(s.Pairs)), sized(s.most, len(s.Pairs))
	for i := range s.Pairs {
		p := &s.Pairs[i]
		p.Heard = p.Heard && !s.Servers[p.Server].Silent
		if p.Heard {
			p.Most = 0 // older parts are forgotten
		}
		p.Most = math.Max(p.Most, p.Part)
	}
	for _, n := range s.Nodes {
		for i := n.First; i < n.Past; i++ {
			p := &s.Pairs[i]
			s.want[i] = math.Min(n.Allowance, p.Used*Headroom)
			if p.Waits {
				s.want[i] = n.Allowance
			}
		}
	}
	s.bound()
	for _, n := range s.Nodes {
		s.split(n)
	}
}

// bound lowers the wishes of nodes on servers whose capacity is less than all wishes together.
func (s *Site) bound() {
	for i := range s.most {
		s.most[i] = math.Inf(1)
	}
	full := false
	for i := range s.Servers {
		full = full || s.Servers[i].Capacity > 0
	}
	if !full {
		return
	}
	var weights, wants []float64
	for server := range s.Servers {
		left := s.Servers[server].Capacity
		if left <= 0 {
			continue
		}
		all := s.On(server)
		for rest := all; len(rest) > 0; { // in the order of classes, the highest first: byServer keeps it
			class := s.classOf(rest[0])
			k := 0
			weights, wants = weights[:0], wants[:0]
			for k < len(rest) && s.classOf(rest[k]) == class {
				weights = append(weights, math.Max(s.nodeOf(rest[k]).Weight, 1))
				wants = append(wants, s.want[rest[k]])
				k++
			}
			s.few = sized(s.few, k)
			used := fill(s.few[:k], wants, weights, left)
			for i, pair := range rest[:k] {
				s.want[pair] = s.few[i]
			}
			left = math.Max(0, left-used)
			rest = rest[k:]
		}
		for _, pair := range all {
			s.most[pair] = s.want[pair] + left/float64(len(all))
		}
	}
}

// split splits one node's allowance.
func (s *Site) split(n Node) {
	pairs := s.Pairs[n.First:n.Past]
	if len(pairs) == 0 {
		return
	}
	s.few = sized(s.few, 3*len(pairs))
	target, above, even := s.few[:len(pairs)], s.few[len(pairs):2*len(pairs)], s.few[2*len(pairs):3*len(pairs)]
	rest, live, floor := n.kept(), 0, n.Floor()
	spread := 0 // over how many what nobody uses is spread
	for i := range pairs {
		p := &pairs[i]
		if s.Servers[p.Server].Silent {
			rest -= p.Most
			continue
		}
		live++
		if !p.Idle {
			spread++
		}
		rest -= floor
		p.Part = math.Max(p.Part, floor)
	}
	if live == 0 {
		return
	}
	rest = math.Max(0, rest)
	for i, p := range pairs {
		above[i], even[i] = math.Max(0, s.want[n.First+i]-floor), 1
		if s.Servers[p.Server].Silent || p.Idle {
			above[i] = 0
		}
	}
	spare := (rest - fill(target, above, even, rest)) / math.Max(1, float64(spread))
	moved, all, over := 0.0, 0.0, false
	for i, p := range pairs {
		if s.Servers[p.Server].Silent {
			target[i] = p.Part
			all += p.Part
			continue
		}
		most := math.Max(floor, s.most[n.First+i])
		if p.Idle {
			most = floor
		}
		target[i] = math.Min(target[i]+floor+spare, most)
		over = over || p.Part > (1+Still)*most
		moved = math.Max(moved, math.Abs(target[i]-p.Part))
		all += target[i]
	}
	if sum := enforced(pairs); !over && moved <= Still*n.Allowance && sum <= n.kept()*(1+1e-9) && sum > all-Still*n.Allowance {
		return
	}
	give(pairs, target, n.kept())
}

// give lowers parts at once, and raises others by the amount that is confirmed to be free.
func give(pairs []Pair, target []float64, allowance float64) {
	wanted := 0.0
	for i := range pairs {
		p := &pairs[i]
		p.Part = math.Min(p.Part, target[i])
		wanted += math.Max(0, target[i]-p.Most)
	}
	free := allowance - enforced(pairs)
	if wanted <= 0 || free <= 0 {
		return
	}
	part := math.Min(1, free/wanted)
	for i := range pairs {
		p := &pairs[i]
		if target[i] > p.Most {
			p.Part = p.Most + part*(target[i]-p.Most)
		} else {
			p.Part = target[i] // up to what the server may still enforce
		}
	}
}

// enforced returns the most that servers may enforce now: each may or may not have heard of its new part.
func enforced(pairs []Pair) (sum float64) {
	for _, p := range pairs {
		sum += math.Max(p.Most, p.Part)
	}
	return sum
}

// fill gives each its want if there is enough, else weighted max–min shares, and returns their sum.
func fill(got, want, weight []float64, all float64) float64 {
	left, weights := all, 0.0
	for i := range want {
		got[i] = -1
		weights += weight[i]
	}
	for again := true; again; {
		again = false
		level := left / weights
		for i := range want {
			if got[i] < 0 && want[i] <= level*weight[i] {
				got[i] = want[i]
				left -= want[i]
				weights -= weight[i]
				again = true
			}
		}
		left = math.Max(0, left)
	}
	for i := range got {
		if got[i] < 0 {
			got[i] = left * weight[i] / weights
		}
	}
	sum := 0.0
	for _, g := range got {
		sum += g
	}
	return math.Min(sum, all)
}
