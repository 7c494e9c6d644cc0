// Package simulate simulates the split of allowances (package share) with many nodes and file servers in memory, with load that
// moves, servers that are silent and messages that are lost.
package simulate

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"berth/internal/site/iosync/share"
)

// Every is the time between rounds.
const Every = 500 * time.Millisecond

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
	Took   float64 `json:"took"`  // seconds, to compute the parts
}

// Result is the result of a simulation.
type Result struct {
	Plan   Plan    `json:"plan"`
	Pairs  int     `json:"pairs"`
	Rounds []Round `json:"rounds"`
	Most   float64 `json:"most"`    // of all rounds
	Slow   float64 `json:"slowest"` // round, in seconds
	Back   float64 `json:"back"`    // most seconds after a change of load until all nodes together had 95 % again; -1: they had not
}

// play is a world while it is played.
type play struct {
	plan     Plan
	site     share.Site
	random   *rand.Rand
	told     []float64 // the limits that servers enforce, by pair
	heard    []bool
	load     []float64 // the I/O that nodes would do, by pair
	perNode  []float64
	silent   []bool
	phase    int
	loadName string
}

// The fifths of the time: what nodes would do changes at each begin, but for the last.
var phases = [...]string{"all servers", "one server", "another server", "another, silent servers", "all servers again"}

// Run runs the simulation. It ends early with ctx.
func Run(ctx context.Context, plan Plan) (*Result, error) {
	p := newPlay(plan)
	r := &Result{Plan: plan, Pairs: len(p.site.Pairs)}
	rounds := plan.Seconds * int(time.Second/Every)
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
		round.Second = (time.Duration(i+1) * Every).Seconds()
		r.Rounds = append(r.Rounds, round)
		r.Most, r.Slow = max(r.Most, round.Most), max(r.Slow, round.Took)
		if !steady && round.Got >= 0.95 {
			steady = true
			r.Back = max(r.Back, float64(i-changed)*Every.Seconds())
		}
	}
	if !steady {
		r.Back = -1
	}
	return r, nil
}

func newPlay(plan Plan) *play {
	p := &play{plan: plan, random: rand.New(rand.NewPCG(plan.Seed, 1))}
	p.site.Servers = make([]share.Server, plan.Servers)
	each := min(plan.Each, plan.Servers)
	for i := range plan.Nodes {
		n := share.Node{Allowance: 1e8 * math.Exp2(4*p.random.Float64()-2), Weight: 100, First: i * each, Past: (i + 1) * each}
		first := p.random.IntN(plan.Servers)
		for k := range each { // spread over all, each server once
			p.site.Pairs = append(p.site.Pairs, share.Pair{Server: (first + k*max(1, plan.Servers/each)) % plan.Servers})
		}
		p.site.Nodes = append(p.site.Nodes, n)
	}
	p.site.Begin()
	p.told, p.load = make([]float64, len(p.site.Pairs)), make([]float64, len(p.site.Pairs))
	p.heard, p.silent = make([]bool, len(p.site.Pairs)), make([]bool, plan.Servers)
	p.perNode = make([]float64, plan.Nodes)
	for i := range p.told {
		p.told[i] = p.site.Pairs[i].Part
	}
	return p
}

// begin changes what nodes would do.
func (p *play) begin(phase int) {
	p.phase, p.loadName = phase, phases[phase]
	for i := range p.silent {
		p.silent[i] = phase == 3 && p.random.Float64() < p.plan.Silent
	}
	if phase == 3 {
		return // the load is as it was
	}
	for _, n := range p.site.Nodes {
		one := n.First + p.random.IntN(n.Past-n.First)
		for i := n.First; i < n.Past; i++ {
			p.load[i] = 0
			if phase == 0 || phase == 4 || i == one {
				p.load[i] = 2 * n.Allowance
			}
		}
	}
}

// round lets the servers report, splits anew, and tells the servers.
func (p *play) round() (r Round) {
	for i := range p.site.Servers {
		p.site.Servers[i].Silent = p.silent[i]
		if p.silent[i] {
			r.Silent++
		}
	}
	for i := range p.site.Pairs {
		pair := &p.site.Pairs[i]
		pair.Heard, pair.Used, pair.Waits = p.heard[i], min(p.load[i], p.told[i]), p.load[i] > p.told[i]
	}
	begun := time.Now()
	p.site.Round()
	r.Took = time.Since(begun).Seconds()
	for i, pair := range p.site.Pairs {
		p.heard[i] = !p.silent[pair.Server] && p.random.Float64() >= p.plan.Lost
		if p.heard[i] {
			p.told[i] = pair.Part
		}
	}
	r.Load = p.loadName
	var got, may float64
	for i, n := range p.site.Nodes {
		var done, would, enforced float64
		for k := n.First; k < n.Past; k++ {
			done += min(p.load[k], p.told[k])
			would += p.load[k]
			enforced += p.told[k]
		}
		would = min(would, n.Allowance)
		got, may = got+done, may+would
		p.perNode[i] = done / would
		r.Most = max(r.Most, enforced/n.Allowance)
	}
	slices.Sort(p.perNode)
	r.Got, r.Worst = got/may, p.perNode[len(p.perNode)/100]
	return r
}
