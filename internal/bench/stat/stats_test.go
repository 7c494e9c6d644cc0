package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Tail probabilities of the signed-rank statistic: Hollander, Wolfe and Chicken, table A.4; the depths follow from them.
func TestSignedRankDepth(t *testing.T) {
	for _, c := range []struct {
		n     int
		alpha float64
		want  int
	}{
		{4, .10, 0},
		{5, .05, 0},
		{5, .10, 1},
		{6, .05, 1},
		{7, .05, 3},
		{8, .05, 4},
		{8, .10, 6},
		{10, .05, 9},
		{12, .05, 14},
		{12, .10, 18},
		{15, .05, 26},
		{20, .05, 53},
		{20, .10, 61},
		{25, .05, 90},
	} {
		if got := signedRankDepth(c.n, c.alpha); got != c.want {
			t.Errorf("n %d, alpha %v: depth %d, want %d", c.n, c.alpha, got, c.want)
		}
	}
	if exact, normal := signedRankDepth(200, .05), signedRankDepth(201, .05); normal < exact || normal > exact+120 {
		t.Errorf("the normal approximation does not go on where the exact distribution ends: %d, %d", exact, normal)
	}
}

func TestEstimate(t *testing.T) {
	// Worked by hand: Walsh averages of 1, 2, 4 are 1 1.5 2 2.5 3 4.
	e := NewEstimate([]float64{4, 1, 2})
	if e.Center != 2.25 || e.I95 != nil || e.I90 != nil {
		t.Errorf("three values: %+v", e)
	}
	e = NewEstimate([]float64{1, 2, 3, 4, 5, 6})
	if diff := cmp.Diff(&Interval{1, 6}, e.I95); diff != "" {
		t.Error("six values reach from the smallest to the largest:", diff)
	}
}

func TestDecide(t *testing.T) {
	m := LogMargin(5)
	iv := func(lo, hi float64) *Interval { return &Interval{lo, hi} }
	for _, c := range []struct {
		name     string
		i90, i95 *Interval
		want     Verdict
	}{
		{"inside", iv(-.01, .01), iv(-.02, .02), Equivalent},
		{"inside, and certain", iv(-.03, -.01), iv(-.035, -.005), Equivalent},
		{"lost", iv(-.2, -.1), iv(-.25, -.05), Worse},
		{"gained", iv(.1, .2), iv(.05, .25), Better},
		{"wide", iv(-.1, .1), iv(-.2, .2), Undecided},
		{"lost, not certain", iv(-.2, -.01), iv(-.25, .01), Undecided},
		{"too few pairs", nil, nil, Undecided},
	} {
		if got := Decide(Estimate{I90: c.i90, I95: c.i95}, m); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestPenalty(t *testing.T) {
	for _, c := range []struct{ node, host, want float64 }{{52.1, 100, 47.9}, {110, 100, -10}, {100, 100, 0}} {
		if got := Penalty(math.Log(c.node / c.host)); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v of %v: penalty %v, want %v", c.node, c.host, got, c.want)
		}
	}
	if got := Penalty(-LogMargin(5)); math.Abs(got-5) > 1e-9 {
		t.Errorf("a margin of 5 %% is a penalty of %v", got)
	}
}

// Moving or scaling the sample moves and scales all that is said about it; the order of the sample does not matter.
func TestEstimateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.SliceOfN(rapid.Float64Range(-1, 1), MinPairs, 30).Draw(t, "x")
		shift := rapid.Float64Range(-2, 2).Draw(t, "shift")
		y := make([]float64, len(x))
		for i, v := range x {
			y[len(x)-1-i] = shift - v // mirrored, moved, turned round
		}
		a, b := NewEstimate(x), NewEstimate(y)
		near := func(p, q float64) bool { return math.Abs(p-q) < 1e-9 }
		if !near(a.Center, shift-b.Center) || !near(a.I95.Lo, shift-b.I95.Hi) || !near(a.I90.Hi, shift-b.I90.Lo) {
			t.Fatalf("%+v %+v is not the mirror image of %+v %+v", b, *b.I95, a, *a.I95)
		}
		if a.I95.Lo > a.I90.Lo || a.I90.Lo > a.Center || a.Center > a.I90.Hi || a.I90.Hi > a.I95.Hi {
			t.Fatalf("not nested: %+v %+v %+v", a, *a.I90, *a.I95)
		}
	})
}

// A noise makes the logs of the throughputs of consecutive trials.
type noise struct {
	name string
	next func(r *rand.Rand) func() float64
}

func noises() []noise {
	normal := func(r *rand.Rand) func() float64 { return func() float64 { return .05 * r.NormFloat64() } }
	return []noise{
		{"normal", normal},
		{"heavy tails (t with 2 degrees)", func(r *rand.Rand) func() float64 {
			return func() float64 { return .05 * r.NormFloat64() / math.Sqrt(r.ExpFloat64()) }
		}},
		{"stalls: one trial in ten at a third", func(r *rand.Rand) func() float64 {
			return func() float64 {
				x := .03 * r.NormFloat64()
				if r.Float64() < .1 {
					x -= 1.1
				}
				return x
			}
		}},
		{"autocorrelated, and falling", func(r *rand.Rand) func() float64 {
			level, n := 0.0, 0.0
			return func() float64 {
				n++
				level = .9*level + .05*r.NormFloat64()
				return level - .01*n + .02*r.NormFloat64()
			}
		}},
		{"lognormal, heavy tail", func(r *rand.Rand) func() float64 { // of the logarithm: one side's tail is far longer
			return func() float64 { return -.02 * math.Exp(1.2*r.NormFloat64()) }
		}},
		{"skewed (exponential)", func(r *rand.Rand) func() float64 {
			return func() float64 { return -.05 * r.ExpFloat64() }
		}},
		{"ties: a coarse clock", func(r *rand.Rand) func() float64 { // steps of a fifth of the deviation
			return func() float64 { return math.Round(.05*r.NormFloat64()/.01) * .01 }
		}},
		{"every second trial is slow", func(r *rand.Rand) func() float64 {
			slow := false
			return func() float64 { slow = !slow; return map[bool]float64{true: -.2}[slow] + .03*r.NormFloat64() }
		}},
	}
}

// simulate runs the design on a noise: blocks of three arms in random order, of which the first two make the pair. The
// node arm has the throughput exp(effect) of the host.
func simulate(r *rand.Rand, n noise, pairs int, effect float64) []float64 {
	next := n.next(r)
	d := make([]float64, pairs)
	for i := range d {
		var got [3]float64
		for _, arm := range r.Perm(3) {
			got[arm] = next()
		}
		d[i] = got[1] + effect - got[0]
	}
	return d
}

// TestPromises checks the promises of the tool on noise like a disk's: intervals hold what they say, it seldom cries wolf, and
// it decides at the margin that it says it can decide. The seed is fixed: this test does not flicker.
func TestPromises(t *testing.T) {
	const runs = 10000
	effect := math.Log(.9)
	for _, n := range noises() {
		for _, pairs := range []int{8, 12, 20} {
			t.Run(fmt.Sprintf("%s, %d pairs", n.name, pairs), func(t *testing.T) {
				r := rand.New(rand.NewPCG(2015, uint64(pairs)))
				var holds, alarm, alarmAtMargin, decided, missed int
				for range runs {
					null := NewEstimate(simulate(r, n, pairs, 0))
					if null.I95.Hi < 0 || null.I95.Lo > 0 {
						alarm++
					}
					margin, _ := decidable(null)
					switch Decide(null, margin) {
					case Worse, Better:
						alarmAtMargin++
						decided++
					case Equivalent:
						decided++
					}
					differs := NewEstimate(simulate(r, n, pairs, effect))
					if differs.I95.Lo <= effect && effect <= differs.I95.Hi {
						holds++
					}
					if Decide(differs, LogMargin(10)) == Equivalent { // the difference is the margin: a false claim
						missed++
					}
				}
				pct := func(n int) float64 { return 100 * float64(n) / runs }
				t.Logf("coverage %.1f %%, false alarms %.1f %% (%.1f %% at its own margin), decided %.1f %%, false equivalence %.1f %%",
					pct(holds), pct(alarm), pct(alarmAtMargin), pct(decided), pct(missed))
				if c := pct(holds); c < 93 || c > 97 {
					t.Errorf("the 95 %% interval holds the truth in %.1f %%", c)
				}
				// 5 % and three standard errors of the simulation.
				if limit := 5 + 300*math.Sqrt(.05*.95/runs); pct(alarm) > limit || pct(alarmAtMargin) > limit || pct(missed) > limit {
					t.Errorf("wrong in more than 5 %%: alarms %.1f, at its own margin %.1f, false equivalence %.1f",
						pct(alarm), pct(alarmAtMargin), pct(missed))
				}
				if pct(decided) < 88 {
					t.Errorf("decides %.1f %% at the margin it says it decides with 90 %%", pct(decided))
				}
			})
		}
	}
}

// The promise itself, not sampled: whatever sizes the differences have, over all ways in which the order in the blocks
// can fall (all signs), at most 5 % are false alarms, and at least 90 % are decided at the margin the run could decide.
func TestExactOverAllOrders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SliceOfN(rapid.OneOf(rapid.Float64Range(0, .1), rapid.Float64Range(0, 3), rapid.Just(0.)), MinPairs, 9).Draw(t, "sizes")
		all, alarms, decided := 1<<len(size), 0, 0
		d := make([]float64, len(size))
		for signs := range all {
			for i, v := range size {
				d[i] = v
				if signs>>i&1 == 1 {
					d[i] = -v
				}
			}
			e := NewEstimate(d)
			if e.I95.Lo > 0 || e.I95.Hi < 0 {
				alarms++
			}
			if m, _ := decidable(e); Decide(e, m) != Undecided || m == 0 { // m is 0 where all differences are
				decided++
			}
		}
		if 20*alarms > all || 10*decided < 9*all {
			t.Fatalf("of %d orders %d are false alarms, %d are decided", all, alarms, decided)
		}
	})
}

func TestOutliers(t *testing.T) {
	if n := Outliers([]float64{100, 101, 99, 100, 30, 100.5}); n != 1 {
		t.Errorf("%d outliers, want 1", n)
	}
	if n := Outliers([]float64{100, 100, 100, 103}); n != 0 {
		t.Errorf("%d outliers among values within 3 %%", n)
	}
}

func count(n *int, yes bool) {
	if yes {
		*n++
	}
}
