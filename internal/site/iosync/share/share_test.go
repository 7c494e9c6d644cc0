package share

import (
	"math"
	"math/rand/v2"
	"testing"
)

// random makes a site of a few nodes on a few servers, in any state that a sequence of rounds can reach.
func random(r *rand.Rand) *Site {
	s := &Site{}
	for range 1 + r.IntN(6) {
		capacity := 0.0
		if r.IntN(2) == 0 {
			capacity = 1e6 * r.Float64()
		}
		s.Servers = append(s.Servers, Server{Capacity: capacity})
	}
	for range 1 + r.IntN(5) {
		n := Node{Allowance: 1 + 1e6*r.Float64(), Weight: float64(1 + r.IntN(1000)), Class: r.IntN(3), First: len(s.Pairs)}
		for server := range s.Servers {
			if r.IntN(3) > 0 {
				s.Pairs = append(s.Pairs, Pair{Server: server, Idle: r.IntN(8) == 0})
			}
		}
		if r.IntN(2) == 0 {
			n.Others, n.Elsewhere = r.IntN(20), n.Allowance*r.Float64()*0.98
		}
		n.Past = len(s.Pairs)
		s.Nodes = append(s.Nodes, n)
	}
	s.Begin()
	return s
}

// TestRounds: whatever servers say and however long they are silent, what they may enforce together is never above a node's allowance
// by more than the floors, and no node has less than its floor on a server that answers; also while loads change and servers fail.
func TestRounds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := random(r)
		enforced := make([]float64, len(s.Pairs)) // what each server does
		for round := range 30 {
			for i := range s.Servers {
				s.Servers[i].Silent = r.IntN(8) == 0
			}
			for i := range s.Pairs {
				p := &s.Pairs[i]
				heard := r.IntN(3) > 0 // perhaps its report left before it was told, or what it was told was lost
				if heard {
					enforced[i] = p.Part
				}
				if s.Servers[p.Server].Silent {
					continue // it may have heard
				}
				p.Heard, p.Used, p.Waits = heard, p.Part*r.Float64(), r.IntN(3) == 0
			}
			check(t, s, enforced, seed, round)
			s.Round()
			for _, n := range s.Nodes {
				for _, p := range s.Pairs[n.First:n.Past] {
					if floor := n.Floor(); !s.Servers[p.Server].Silent && p.Part < floor*(1-1e-9) {
						t.Errorf("seed %d, round %d: a part is %g, the floor %g", seed, round, p.Part, floor)
					}
				}
			}
			if t.Failed() {
				return
			}
		}
	}
}

func check(t *testing.T, s *Site, enforced []float64, seed uint64, round int) {
	t.Helper()
	for i, n := range s.Nodes {
		pairs := s.Pairs[n.First:n.Past]
		sum := n.Elsewhere
		if n.Others > 0 {
			sum += float64(n.Others) * n.Floor()
		}
		for _, e := range enforced[n.First:n.Past] {
			sum += e
		}
		if sum > n.Allowance*(1+Floor+1e-9) {
			t.Errorf("seed %d, round %d: node %d has %g on all servers, its allowance is %g: %+v", seed, round, i, sum, n.Allowance, pairs)
		}
		for _, p := range pairs {
			if math.IsNaN(p.Part) || p.Part < 0 {
				t.Errorf("seed %d, round %d: a part is %g", seed, round, p.Part)
			}
		}
	}
}

// TestSilentHoldsAll: servers that answer have their floors, also if a silent one may enforce the whole allowance.
func TestSilentHoldsAll(t *testing.T) {
	t.Parallel()
	s := site(100, Server{}, Server{}, Server{Silent: true}, Server{})
	s.Pairs[0].Part, s.Pairs[1].Part, s.Pairs[3].Part = 0, 0, 0
	s.Pairs[2].Part, s.Pairs[2].Most = 100, 100
	settle(t, s, []float64{1000, 1000, 1000, 0})
	for _, i := range []int{0, 1, 3} {
		if s.Pairs[i].Part != Floor*100/4 {
			t.Errorf("a part is %g, the floor %g", s.Pairs[i].Part, Floor*100/4)
		}
	}
}

// settle plays rounds in which loads stay, until parts stay, and returns how many it took.
func settle(t *testing.T, s *Site, load []float64) int {
	t.Helper()
	for round := range 50 {
		before := make([]float64, len(s.Pairs))
		for i := range s.Pairs {
			p := &s.Pairs[i]
			if s.Servers[p.Server].Silent {
				continue
			}
			before[i], p.Heard = p.Part, true
			p.Used, p.Waits = min(load[i], p.Part), load[i] > p.Part*0.98
		}
		s.Round()
		same := true
		for i, p := range s.Pairs {
			same = same && (s.Servers[p.Server].Silent || math.Abs(p.Part-before[i]) < 1e-6)
		}
		if same {
			return round
		}
	}
	t.Fatalf("parts do not settle: %+v", s.Pairs)
	return 0
}

func site(allowance float64, servers ...Server) *Site {
	s := &Site{Servers: servers, Nodes: []Node{{Allowance: allowance, Weight: 100, Past: len(servers)}}}
	for i := range servers {
		s.Pairs = append(s.Pairs, Pair{Server: i})
	}
	s.Begin()
	return s
}

// TestWhereTheLoadGoes: the whole allowance is where the load is, within a few rounds, also after it moved.
func TestWhereTheLoadGoes(t *testing.T) {
	t.Parallel()
	s := site(100, Server{}, Server{}, Server{}, Server{})
	for _, load := range [][]float64{{1000, 0, 0, 0}, {0, 1000, 0, 0}, {1000, 1000, 0, 0}, {10, 1000, 0, 0}, {1000, 1000, 1000, 1000}} {
		rounds := settle(t, s, load)
		got, asked := 0.0, 0.0
		for i, p := range s.Pairs {
			got += min(p.Part, load[i])
			asked += load[i]
		}
		// An idle server keeps its floor.
		if rounds > 6 || got < min(100, asked)*(1-Floor-Still) {
			t.Errorf("load %v: %g of 100 after %d rounds: %+v", load, got, rounds, s.Pairs)
		}
	}
}

// TestSilent: a server that is silent keeps its part; the others share what is left.
func TestSilent(t *testing.T) {
	t.Parallel()
	s := site(100, Server{}, Server{})
	settle(t, s, []float64{1000, 1000})
	s.Servers[0].Silent = true
	settle(t, s, []float64{0, 1000})
	if s.Pairs[0].Part != 50 || math.Abs(s.Pairs[1].Part-50) > 1 {
		t.Errorf("a silent server's part: %+v", s.Pairs)
	}
	s.Servers[0].Silent = false
	settle(t, s, []float64{0, 1000})
	if s.Pairs[1].Part < 90 {
		t.Errorf("a server that is back, without load: %+v", s.Pairs)
	}
}

// TestCapacity: nodes share a full server by class, then by weight, and use their allowance elsewhere; what nobody wants is spread.
func TestCapacity(t *testing.T) {
	t.Parallel()
	s := &Site{Servers: []Server{{Capacity: 90}, {}}}
	for _, n := range []Node{{Weight: 800}, {Weight: 100}, {Weight: 100, Class: 1}} {
		n.Allowance, n.First, n.Past = 200, len(s.Pairs), len(s.Pairs)+2
		s.Nodes = append(s.Nodes, n)
		s.Pairs = append(s.Pairs, Pair{Server: 0}, Pair{Server: 1})
	}
	s.Begin()
	parts := func(use func(i int, p *Pair)) {
		for range 20 {
			for i := range s.Pairs {
				s.Pairs[i].Heard = true
				use(i, &s.Pairs[i])
			}
			s.Round()
		}
	}
	check := func(what string, want map[int]float64) {
		for pair, part := range want {
			if got := s.Pairs[pair].Part; math.Abs(got-part) > Still*200 {
				t.Errorf("%s: pair %d has %g, want %g", what, pair, got, part)
			}
		}
	}
	parts(func(i int, p *Pair) {
		p.Used, p.Waits = 0, true
		if i == 4 { // of the higher class
			p.Used, p.Waits = 36/Headroom, false
		}
	})
	check("full", map[int]float64{0: 48, 2: 6, 4: 36, 1: 152, 3: 194, 5: 164})
	parts(func(_ int, p *Pair) { p.Used, p.Waits = 0, false })
	check("idle", map[int]float64{0: 30, 2: 30, 4: 30})
}

// TestCapacityHolds: parts on a server are together not more than it can do, but for floors, however many nodes join.
func TestCapacityHolds(t *testing.T) {
	t.Parallel()
	const capacity = 500.0
	s := &Site{Servers: []Server{{Capacity: capacity}}}
	for n := 1; n <= 60; n++ {
		s.Nodes = append(s.Nodes, Node{Allowance: capacity, Weight: 100, First: n - 1, Past: n})
		s.Pairs = append(s.Pairs, Pair{Part: capacity})
		s.Begin()
		sum := 0.0
		for range 30 {
			sum = 0
			for i := range s.Pairs {
				p := &s.Pairs[i]
				p.Heard, p.Used, p.Waits = true, p.Part, true
			}
			s.Round()
			for _, p := range s.Pairs {
				sum += p.Part
			}
		}
		if most := (1 + Still) * max(capacity, float64(n)*Floor*capacity); sum > most {
			t.Errorf("%d nodes have %.0f together, want at most %.0f", n, sum, most)
		}
	}
}

// TestStill: noise moves nothing.
func TestStill(t *testing.T) {
	t.Parallel()
	s := site(100, Server{}, Server{})
	settle(t, s, []float64{60, 30})
	for i := range s.Pairs {
		s.Pairs[i].Heard = true
	}
	before := s.Pairs[0].Part
	s.Pairs[0].Used, s.Pairs[1].Used, s.Pairs[0].Waits, s.Pairs[1].Waits = 60.5, 29.5, false, false
	s.Round()
	if s.Pairs[0].Part != before {
		t.Errorf("noise moved a part from %g to %g", before, s.Pairs[0].Part)
	}
}

// BenchmarkRound is a round of 10,000 nodes on 500 servers, 8 of them each: 80,000 pairs. It is to take at most 10 ms.
func BenchmarkRound(b *testing.B) {
	for _, full := range []bool{false, true} {
		name := "roomy"
		if full {
			name = "full"
		}
		b.Run(name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			s := &Site{Servers: make([]Server, 500)}
			for i := range s.Servers {
				if full {
					s.Servers[i].Capacity = 2000
				}
			}
			for range 10_000 {
				n := Node{Allowance: 100, Weight: float64(1 + r.IntN(100)), Class: r.IntN(3), First: len(s.Pairs), Past: len(s.Pairs) + 8}
				for k := range 8 {
					s.Pairs = append(s.Pairs, Pair{Server: (len(s.Nodes)*7 + k*61) % 500})
				}
				s.Nodes = append(s.Nodes, n)
			}
			s.Begin()
			for b.Loop() {
				for i := range s.Pairs {
					p := &s.Pairs[i]
					p.Heard, p.Used, p.Waits = true, p.Part*float64(i%7)/7, i%3 == 0
				}
				s.Round()
			}
		})
	}
}
