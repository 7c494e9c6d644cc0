package stat

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Ties at 0 are not broken by rounding: ln(a/b) + ln(b/a) is not 0 in floating point, and which side it falls on is nobody's finding. Swapped
// arms must give the same p-value, and a pair of opposite differences must not count.
func TestTiesAtZero(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	broken := 0
	for range 200 {
		a, b := 1e3*r.Float64()+1, 1e3*r.Float64()+1
		d := []float64{math.Log(a / b), math.Log(b / a), math.Log(a / b * 1.5), math.Log(b * 2 / a), math.Log(a / b), math.Log(b / a)}
		count(&broken, (d[0]+d[1])/2 != 0)
		zeros := 0
		for _, w := range walsh(d) {
			count(&zeros, w == 0)
		}
		if zeros < 4 { // 0-1, 0-5, 1-4, 4-5
			t.Fatalf("%v: %d means are 0", d, zeros)
		}
		neg := make([]float64, len(d))
		for i, v := range d {
			neg[i] = -v
		}
		if p, q := Differs(d), Differs(neg); p != q {
			t.Fatalf("p %v, of the arms swapped %v", p, q)
		}
		if above(d, 0) < above([]float64{d[0] + 1e-9, d[1], d[2], d[3], d[4], d[5]}, 0) {
			t.Fatal("a mean above 0 counts less than one at 0")
		}
	}
	if broken == 0 {
		t.Error("no sum of opposite logarithms is off by rounding: the test shows nothing")
	}
	// Six pairs of which three are the other three turned round: nothing is above, nothing below.
	opposite := []float64{math.Log(1.1), math.Log(1 / 1.1), math.Log(1.3), math.Log(1 / 1.3), math.Log(1.7), math.Log(1 / 1.7)}
	if e := NewEstimate(opposite); e.Center != 0 || Differs(opposite) != 1 {
		t.Errorf("%+v, p %v", e, Differs(opposite))
	}
}

// TestCouldOfATime checks that the margin which could have been decided is told in the unit of the penalty: a time that triples
// is 200 % more, not 67 % less.
func TestCouldOfATime(t *testing.T) {
	d := []float64{-.5, -.3, .1, .4, .2, -.1, .3}
	speed, wait := Judge(d, 5, Penalty), Judge(d, 5, Extra)
	m, _ := decidable(NewEstimate(d))
	if math.Abs(*speed.Could-100*(1-math.Exp(-m))) > 1e-9 || math.Abs(*wait.Could-100*(math.Exp(m)-1)) > 1e-9 || *wait.Could <= *speed.Could {
		t.Errorf("a width of %v: %v %% of speed, %v %% of time", m, *speed.Could, *wait.Could)
	}
}

// The second estimate: numbers from an independent computation (numpy and scipy.stats.t), and its p-values are its interval.
func TestTotals(t *testing.T) {
	b := Pairs{Ref: []float64{100, 110, 95, 105, 120, 98, 101, 99}, Arm: []float64{97, 108, 30, 104, 118, 99, 97, 100}}
	c := b.Judge(5, Penalty)
	for name, v := range map[string][2]float64{
		"penalty": {c.Totals.PenaltyPct, 9.05797101449275}, "low 90": {c.Totals.CI90Pct[0], -5.420382986492855}, "high 90": {c.Totals.CI90Pct[1], 24.204703125264913},
		"p": {b.moments().notWithin(LogMargin(5)), 0.6914636802609656},
	} {
		if math.Abs(v[0]-v[1]) > 1e-6 {
			t.Errorf("%s: %v, want %v", name, v[0], v[1])
		}
	}
	if _, equal := b.Tests(5); c.Verdict == Equivalent || equal < .05 {
		t.Errorf("a stalled trial in eight: %+v", c)
	}
	r := rand.New(rand.NewPCG(5, 2))
	inside := 0
	for range 500 {
		var x Pairs
		for range 6 + r.IntN(10) {
			x.Ref, x.Arm = append(x.Ref, math.Exp(.1*r.NormFloat64())), append(x.Arm, math.Exp(.1*r.NormFloat64()+.02))
		}
		m, margin := x.moments(), LogMargin(10)
		i := m.ratio(.10)
		in := i != nil && -margin < i.Lo && i.Hi < margin
		count(&inside, in)
		if p := m.notWithin(margin); (p < .05) != in && math.Abs(p-.05) > 1e-9 {
			t.Fatalf("p %v, interval %+v, margin %v", p, i, margin)
		}
	}
	if inside < 50 || inside > 450 {
		t.Errorf("%d of 500 intervals lie inside: the test shows little", inside)
	}
}

// RatioOfTotals lies in its interval, whose coverage is what it says: for noise of both that is independent, shared or skewed.
func TestRatioOfTotals(t *testing.T) {
	const truth, runs = .4, 1000
	r := rand.New(rand.NewPCG(5, 3))
	for _, n := range []int{8, 30} {
		for _, spread := range []struct{ shared, own float64 }{{0, .1}, {.3, .05}, {.5, .3}} {
			missed := 0
			for range runs {
				var x, y []float64
				for range n {
					speed := math.Exp(spread.shared * r.NormFloat64())
					y = append(y, speed*math.Exp(spread.own*r.NormFloat64()))
					x = append(x, truth*speed*math.Exp(spread.own*r.NormFloat64()))
				}
				ratio, ci := RatioOfTotals(x, y)
				if ci == nil || ratio < ci.Lo || ci.Hi < ratio {
					t.Fatalf("%v is not in its interval %+v", ratio, ci)
				}
				count(&missed, truth < ci.Lo || ci.Hi < truth)
			}
			if missed > runs*7/100 {
				t.Errorf("%d pairs, spread %+v: %d of %d intervals miss", n, spread, missed, runs)
			}
		}
	}
	if _, ci := RatioOfTotals([]float64{1, 2}, []float64{2, 4}); ci != nil {
		t.Errorf("an interval of two pairs: %+v", ci)
	}
	if ratio, ci := RatioOfTotals([]float64{1, 2, 1, 2, 1}, make([]float64, 5)); ratio != 0 || ci != nil {
		t.Errorf("nothing to compare with: %v, %+v", ratio, ci)
	}
}
