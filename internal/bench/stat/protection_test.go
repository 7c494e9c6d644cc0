package stat

import (
	"math"
	"math/rand/v2"
	"testing"
)

// An order of latencies in one round after the other: the arms in random order, the noise goes on from trial to trial.
func threeArms(r *rand.Rand, rounds int, serial, spread float64, mean [3]float64) [3]map[int]float64 {
	arms := [3]map[int]float64{{}, {}, {}}
	e := r.NormFloat64()
	for round := 1; round <= rounds; round++ {
		for _, i := range r.Perm(3) {
			e = serial*e + math.Sqrt(1-serial*serial)*r.NormFloat64()
			arms[i][round] = mean[i] * math.Exp(spread*e)
		}
	}
	return arms
}

// TestProtectionCovers checks the results of Protection in simulated runs: independent, serial and heavy noise; three
// arms that are the same, neighbours that add and nothing that protects, protection that takes away a part or all.
func TestProtectionCovers(t *testing.T) {
	const runs = 4000
	r := rand.New(rand.NewPCG(10, 3))
	for _, c := range []struct {
		name           string
		serial, spread float64
		mean           [3]float64 // alone, unprotected, protected
		told           [2]float64 // how often the removed part is told, percent
	}{
		{"all the same", 0, .3, [3]float64{10, 10, 10}, [2]float64{0, 3.5}},
		{"all the same, serial", .6, .3, [3]float64{10, 10, 10}, [2]float64{0, 3.5}},
		{"all the same, wild", .6, 1, [3]float64{10, 10, 10}, [2]float64{0, 3.5}},
		{"nothing protects", .6, .3, [3]float64{10, 30, 30}, [2]float64{90, 100}},
		{"half", .6, .3, [3]float64{10, 40, 25}, [2]float64{90, 100}},
		{"all of it", .6, .3, [3]float64{10, 40, 10}, [2]float64{90, 100}},
		{"more than it", .6, .3, [3]float64{20, 40, 10}, [2]float64{50, 100}},
		{"little, wild", .6, 1, [3]float64{10, 20, 15}, [2]float64{1, 60}},
	} {
		for _, rounds := range []int{6, 12} {
			shorter := 100 * (1 - c.mean[2]/c.mean[1])
			removed := 100 * (c.mean[1] - c.mean[2]) / (c.mean[1] - c.mean[0]) // all arms' noise has the same shape: of the means as of medians
			holdsShorter, holdsRemoved, told := 0, 0, 0
			var at, of []float64
			for range runs {
				a := threeArms(r, rounds, c.serial, c.spread, c.mean)
				p := Protection(a[0], a[1], a[2])
				at = append(at, p.Shorter.Pct)
				count(&holdsShorter, p.Shorter.CI95[0] <= shorter && shorter <= p.Shorter.CI95[1])
				if p.Removed != nil {
					told++
					of = append(of, p.Removed.Pct)
					count(&holdsRemoved, p.Removed.CI95[0] <= removed && removed <= p.Removed.CI95[1])
				}
			}
			percent := func(n int) float64 { return 100 * float64(n) / runs }
			t.Logf("%-22s %2d rounds: shorter %6.1f (true %.1f), held in %.1f %%; removed told in %.1f %%: %6.1f (true %.1f), missed in %.1f %% of all runs",
				c.name, rounds, MedianOf(at), shorter, percent(holdsShorter), percent(told), MedianOf(of), removed, percent(told-holdsRemoved))
			if got := MedianOf(at); math.Abs(got-shorter) > 3 {
				t.Errorf("%s, %d rounds: the middle estimate is %.1f %% shorter, in truth %.1f", c.name, rounds, got, shorter)
			}
			if percent(holdsShorter) < 94 {
				t.Errorf("%s, %d rounds: the interval of shorter holds the truth in %.1f %%", c.name, rounds, percent(holdsShorter))
			}
			if c.mean[0] != c.mean[1] && percent(told-holdsRemoved) > 6 {
				t.Errorf("%s, %d rounds: the removed part's interval misses the truth in %.1f %% of runs", c.name, rounds, percent(told-holdsRemoved))
			}
			if p := percent(told); rounds == 12 && (p < c.told[0] || p > c.told[1]) {
				t.Errorf("%s: the removed part is told in %.1f %% of runs", c.name, p)
			}
		}
	}
}

// The interval of a ratio holds just those ratios that the signed-rank test accepts, tried one by one.
func TestRatioIsTheTestTurnedRound(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 4))
	for range 300 {
		n := 6 + r.IntN(8)
		x, y := make([]float64, n), make([]float64, n)
		for i := range n {
			y[i] = 1 + .8*r.NormFloat64()
			x[i] = .7*y[i] + .5*r.NormFloat64()
		}
		center, ci, ok := ratioOf(x, y)
		shown := above(y, 0) <= .025
		if ok && !shown {
			t.Fatalf("told where nothing is shown to be added: %v", y)
		}
		if !ok {
			if shown {
				t.Fatalf("not told where something is: %v %v", x, y)
			}
			continue
		}
		p := func(theta float64) float64 {
			d := make([]float64, n)
			for i := range d {
				d[i] = x[i] - theta*y[i]
			}
			return min(1, 2*min(above(d, 0), below(d, 0)))
		}
		if p(ci.Lo-1e-6) > .05 || p(ci.Hi+1e-6) > .05 || p(ci.Lo+1e-6) <= .05 || p(ci.Hi-1e-6) <= .05 || p(center) < .5 {
			t.Fatalf("%v %+v: p outside %v %v, inside %v %v, in the middle %v", center, ci, p(ci.Lo-1e-6), p(ci.Hi+1e-6), p(ci.Lo+1e-6), p(ci.Hi-1e-6), p(center))
		}
	}
}

// Worked by hand: alone 10, beside 50 and 90, protected 20 and 30: 30 of 40 and 60 of 80 are gone. In the third round nothing was added; it
// counts. And with too few rounds there is no interval, so nothing of it is told.
func TestProtection(t *testing.T) {
	alone, beside := map[int]float64{1: 10, 2: 10, 3: 30}, map[int]float64{1: 50, 2: 90, 3: 20}
	p := Protection(alone, beside, map[int]float64{1: 20, 2: 30, 3: 1})
	if p.Rounds != 3 || p.Removed != nil || p.Shorter.CI95 != nil || math.Abs(p.Shorter.Pct-(1-math.Pow(1./20, 1./2)*math.Pow(1./3, 1./2))*100) > 30 {
		t.Errorf("got %+v", p)
	}
	if same := Protection(alone, alone, alone); same.Shorter.Pct != 0 || same.Added.Pct != 0 || same.Removed != nil {
		t.Errorf("three arms that are the same: %+v", same)
	}
	if p := Protection(alone, nil, alone); p != nil {
		t.Errorf("no round has all arms: %+v", p)
	}
	many := [3]map[int]float64{{}, {}, {}}
	for round := range 8 {
		many[0][round], many[1][round], many[2][round] = 10, 50+float64(round), 20+float64(round)/4
	}
	if p := Protection(many[0], many[1], many[2]); p.Removed == nil || math.Abs(p.Removed.Pct-75) > .2 || p.Removed.CI95[0] < 74.9 || p.Removed.CI95[1] > 75.3 {
		t.Errorf("three quarters are gone: %+v", p.Removed)
	}
}

// How often the interval of one arm's values holds the truth, where rounds resemble their neighbours: the signed-rank
// interval, made for independent ones, and the stretched one.
func TestLocatedSerial(t *testing.T) {
	const runs = 1000
	r := rand.New(rand.NewPCG(10, 5))
	for _, c := range []struct{ serial, least float64 }{{0, 94}, {.3, 91}, {.6, 86}} {
		for _, n := range []int{6, 8, 12, 20} {
			plain, stretched := 0, 0
			for range runs {
				x := make([]float64, n)
				e := r.NormFloat64()
				for i := range x {
					e = c.serial*e + math.Sqrt(1-c.serial*c.serial)*r.NormFloat64()
					x[i] = e
				}
				p, s := NewEstimate(x).I95, SerialEstimate(x).I95
				count(&plain, p.Lo <= 0 && 0 <= p.Hi)
				count(&stretched, s.Lo <= 0 && 0 <= s.Hi)
			}
			t.Logf("neighbours correlated by %.1f, %2d rounds: held in %.1f %%, as if independent in %.1f %%", c.serial, n, 100*float64(stretched)/runs, 100*float64(plain)/runs)
			if got := 100 * float64(stretched) / runs; got < c.least {
				t.Errorf("neighbours correlated by %.1f, %d rounds: the interval holds the truth in %.1f %%", c.serial, n, got)
			}
		}
	}
}
