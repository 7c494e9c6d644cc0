// Package simulate plays the allocator (package allot) with many nodes and file servers in memory, with load that moves, servers that
// are silent and messages that are lost.
package simulate

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"berth/internal/site/iosync/allot"
	"berth/internal/site/iosync/share"
)

// Plan has the parameters of a simulation. The same plan gives the same result, but for the times that rounds took.
type Plan struct {
	Nodes   int     `json:"nodes"`
	Servers int     `json:"servers"`
	Each    int     `json:"servers_of_a_node"`
	Seconds int     `json:"seconds"`
	Lost    float64 `json:"lost"`   // part of the messages to servers that do not arrive
	Silent  float64 `json:"silent"` // part of the servers that neither report nor hear in the fourth fifth of the time
	Seed    uint64  `json:"seed"`
}

// Round is the result of one round.
type Round struct {
	Second float64 `json:"second"`
	Load   string  `json:"load"`
	Silent int     `json:"silent_servers"`
	Got    float64 `json:"got"`   // the I/O of all nodes together, as a part of what they may and would do
	Worst  float64 `json:"worst"` // the same of the node that only one in a hundred is below
	Most   float64 `json:"most"`  // what servers enforced together for a node, as a part of its allowance: for the node with the most
	Took   float64 `json:"took"`  // seconds, to answer a report: the longest
}

// Result is the result of a simulation.
type Result struct {
	Plan   Plan    `json:"plan"`
	Pairs  int     `json:"pairs"`
	Rounds []Round `json:"rounds"`
	Most   float64 `json:"most"`    // of all rounds
	Slow   float64 `json:"slowest"` // answer to a report, in seconds
	Back   float64 `json:"back"`    // most seconds after a change of load until all nodes together had 95 % again; -1: they had not
}

// pair is a node on a server that it uses.
type pair struct {
	node, server int
	load         float64 // the I/O that the node would do there
}

// server is a file server: it does what package iosync does.
type server struct {
	order  allot.Order
	heard  time.Time // when it had the last order
	pairs  []int     // of the nodes that use it
	silent bool
}

// play is a world while it is played. The pairs of a node lie one behind the other.
type play struct {
	plan      Plan
	allocator *allot.Allocator
	demand    allot.Demand
	now       time.Time
	random    *rand.Rand
	each      int
	nodes     map[string]int
	pairs     []pair
	servers   []server
	phase     int
	loadName  string
}

// The fifths of the time: what nodes would do changes at each begin, but for the last.
var phases = [...]string{"all servers", "one server", "another server", "another, silent servers", "all servers again"}

// Run runs the simulation. It ends early with ctx.
func Run(ctx context.Context, plan Plan) (*Result, error) {
	p := newPlay(plan)
	r := &Result{Plan: plan, Pairs: len(p.pairs)}
	rounds := plan.Seconds * int(time.Second/allot.Every)
	changed, steady := 0, true
	for i := range rounds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if phase := i * len(phases) / rounds; phase != p.phase || i == 0 {
			p.begin(phase)
			changed, steady = i, false
		}
		round := p.round()
		round.Second = (time.Duration(i+1) * allot.Every).Seconds()
		r.Rounds = append(r.Rounds, round)
		r.Most, r.Slow = max(r.Most, round.Most), max(r.Slow, round.Took)
		if !steady && round.Got >= 0.95 {
			steady = true
			r.Back = max(r.Back, float64(i-changed)*allot.Every.Seconds())
		}
	}
	if !steady {
		r.Back = -1
	}
	return r, nil
}

func newPlay(plan Plan) *play {
	p := &play{
		plan: plan, random: rand.New(rand.NewPCG(plan.Seed, 1)), each: min(plan.Each, plan.Servers), nodes: map[string]int{},
		servers: make([]server, plan.Servers), now: time.Unix(0, 0),
	}
	p.allocator = allot.New("simulated", p.now)
	for i := range plan.Servers {
		p.demand.Servers = append(p.demand.Servers, fmt.Sprintf("s%06d", i))
		p.servers[i].heard = p.now
	}
	for i := range plan.Nodes {
		n := allot.Want{Node: fmt.Sprintf("n%07d", i), Weight: 100}
		n.Rates[allot.ReadBytes] = 1e8 * math.Exp2(4*p.random.Float64()-2)
		p.demand.Nodes, p.nodes[n.Node] = append(p.demand.Nodes, n), i
		first := p.random.IntN(plan.Servers)
		for k := range p.each { // spread over all, each server once
			at := (first + k*max(1, plan.Servers/p.each)) % plan.Servers
			p.servers[at].pairs = append(p.servers[at].pairs, len(p.pairs))
			p.pairs = append(p.pairs, pair{node: i, server: at})
		}
	}
	return p
}

// allowance is a node's, on all servers together.
func (p *play) allowance(node int) float64 { return p.demand.Nodes[node].Rates[allot.ReadBytes] }

// begin changes what nodes would do.
func (p *play) begin(phase int) {
	p.phase, p.loadName = phase, phases[phase]
	for i := range p.servers {
		p.servers[i].silent = phase == 3 && p.random.Float64() < p.plan.Silent
	}
	if phase == 3 {
		return // the load is as it was
	}
	for node := range p.plan.Nodes {
		one := p.random.IntN(p.each)
		for k := range p.each {
			pair := &p.pairs[node*p.each+k]
			pair.load = 0
			if phase == 0 || phase == 4 || k == one {
				pair.load = 2 * p.allowance(node)
			}
		}
	}
}

// enforced is the limit of a node on a server.
func (p *play) enforced(s *server, node int) float64 {
	part, ok := s.order.Parts[p.demand.Nodes[node].Node]
	if !ok {
		return p.unlisted() * p.allowance(node)
	}
	return part[allot.ReadBytes] * p.allowance(node)
}

// unlisted is the part of a node that a server was told none of.
func (p *play) unlisted() float64 {
	if p.plan.Servers > allot.Few {
		return share.Floor / float64(p.plan.Servers)
	}
	return 1 / float64(p.plan.Servers)
}

// report has a server report, and enforce the order that answers it, unless that is lost. It returns how long the answer took.
func (p *play) report(i int) time.Duration {
	s := &p.servers[i]
	if s.silent {
		if p.now.Sub(s.heard) >= allot.Grace && s.order.Number != "" { // nothing is above an equal part then
			lower := map[string]allot.Rates{}
			for node, part := range s.order.Parts {
				lower[node] = allot.Rates{min(part[allot.ReadBytes], 1/float64(p.plan.Servers))}
			}
			s.order = allot.Order{Parts: lower, Floors: s.order.Floors}
		}
		return 0
	}
	r := allot.Report{Host: p.demand.Servers[i], Filesystem: "fs", Order: s.order.Number, Nodes: make([]allot.Use, 0, len(s.pairs))}
	used := map[int]float64{}
	for _, k := range s.pairs {
		used[p.pairs[k].node] = min(p.pairs[k].load, p.enforced(s, p.pairs[k].node))
	}
	for node, does := range used {
		if _, told := s.order.Parts[p.demand.Nodes[node].Node]; !told && does > 0 {
			r.Nodes = append(r.Nodes, allot.Use{Node: p.demand.Nodes[node].Node, Used: allot.Rates{does}, Part: allot.Rates{p.enforced(s, node)}})
		}
	}
	for node := range s.order.Parts {
		at := p.nodes[node]
		r.Nodes = append(r.Nodes, allot.Use{Node: node, Used: allot.Rates{used[at]}, Part: allot.Rates{p.enforced(s, at)}})
	}
	begun := time.Now()
	o := p.allocator.Take(r, &p.demand, p.now)
	took := time.Since(begun)
	if p.random.Float64() < p.plan.Lost {
		return took
	}
	s.heard = p.now
	if o.Number != "" && o.Number != s.order.Number {
		s.order = o
		p.allocator.Take(allot.Report{Host: r.Host, Filesystem: r.Filesystem, Order: o.Number}, &p.demand, p.now)
	}
	return took
}

// round lets the servers report, one after the other, and looks at what nodes get then.
func (p *play) round() (r Round) {
	r.Load = p.loadName
	begun := p.now
	for i := range p.servers {
		p.now = begun.Add(time.Duration(i) * allot.Every / time.Duration(p.plan.Servers))
		r.Took = max(r.Took, p.report(i).Seconds())
		if p.servers[i].silent {
			r.Silent++
		}
	}
	p.now = begun.Add(allot.Every)
	enforced := make([]float64, p.plan.Nodes) // parts of the allowance, on all servers together
	for node := range enforced {
		enforced[node] = p.unlisted() * float64(p.plan.Servers)
	}
	for i := range p.servers {
		for node, part := range p.servers[i].order.Parts {
			enforced[p.nodes[node]] += part[allot.ReadBytes] - p.unlisted()
		}
	}
	var got, may float64
	worst := make([]float64, p.plan.Nodes)
	for node := range worst {
		var done, would float64
		for k := node * p.each; k < (node+1)*p.each; k++ {
			done += min(p.pairs[k].load, p.enforced(&p.servers[p.pairs[k].server], node))
			would += p.pairs[k].load
		}
		would = min(would, p.allowance(node))
		got, may = got+done, may+would
		worst[node] = done / would
		r.Most = max(r.Most, enforced[node])
	}
	slices.Sort(worst)
	r.Got, r.Worst = got/may, worst[len(worst)/100]
	return r
}
