package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func TestPowerFactor(t *testing.T) {
	if got := powerFactor(100_000); math.Abs(got-2*z95) > .001 {
		t.Errorf("a spread that is known: %v, want twice %v", got, z95)
	}
	// The definition, sampled: with S estimated, Φ(a·S − z) is .95 on average.
	r := rand.New(rand.NewPCG(2015, 0))
	for _, freedom := range []int{4, 7, 19} {
		a, sum := powerFactor(freedom), 0.
		const runs = 100_000
		for range runs {
			s2 := 0.
			for range freedom {
				z := r.NormFloat64()
				s2 += z * z
			}
			sum += math.Erfc(-(a*math.Sqrt(s2/float64(freedom))-z95)/math.Sqrt2) / 2
		}
		if got := sum / runs; math.Abs(got-.95) > .003 {
			t.Errorf("%d degrees of freedom: factor %v keeps %v, want .95", freedom, a, got)
		}
	}
}

// A run planned by a pilot keeps the promise of 90 % power, whatever the noise; drift and stalls, which no small pilot
// can know, cost it little.
func TestPairsNeeded(t *testing.T) {
	const runs = 400
	for _, c := range []struct {
		noise  int     // of noises()
		margin float64 // that takes some 20 to 60 pairs
		least  float64 // power
	}{{0, 8, .90}, {1, 15, .88}, {2, 50, .85}, {3, 12, .90}, {4, 15, .88}, {5, 8, .90}, {6, 8, .90}, {7, 25, .90}} {
		for _, pilot := range []int{6, 8, 12} {
			n := noises()[c.noise]
			t.Run(fmt.Sprintf("%s, pilot of %d", n.name, pilot), func(t *testing.T) {
				r := rand.New(rand.NewPCG(2015, uint64(pilot)))
				decided, sum := 0, 0
				for range runs {
					pairs, ok := PairsNeeded(simulate(r, n, pilot, .3), c.margin) // what the pilot is centred on does not matter
					if !ok {
						t.Fatal("the pilot is refused")
					}
					pairs = min(pairs, 150)
					sum += pairs
					if Decide(NewEstimate(simulate(r, n, pairs, 0)), LogMargin(c.margin)) == Equivalent {
						decided++
					}
				}
				power := float64(decided) / runs
				t.Logf("power %.3f with %d pairs on average", power, sum/runs)
				if power < c.least-3*math.Sqrt(.09/runs) {
					t.Errorf("power %.3f, want %.2f", power, c.least)
				}
			})
		}
	}
}

func TestPairsNeededEdges(t *testing.T) {
	same := []float64{.1, .1, .1, .1, .1, .1}
	if n, ok := PairsNeeded(same, 1); n != MinPairs || !ok {
		t.Errorf("no spread at all: %d pairs, %v", n, ok)
	}
	if _, ok := PairsNeeded(same[:4], 1); ok {
		t.Error("a pilot of 4 pairs is taken")
	}
	if _, ok := MarginFor(same, MinPairs-1); ok {
		t.Error("a run of 5 pairs is given a margin")
	}
	wild := []float64{-3, 2, -1, 3, -2, 1}
	if n, _ := PairsNeeded(wild, .001); n != mostPairs {
		t.Errorf("wild noise: %d pairs", n)
	}
	// One is the inverse of the other.
	for _, margin := range []float64{2, 5, 20, 60} {
		n, _ := PairsNeeded(wild, margin)
		got, ok := MarginFor(wild, n)
		less, _ := MarginFor(wild, n-1)
		if !ok || got > margin || (n > MinPairs && less < margin) {
			t.Errorf("margin %v needs %d pairs, which decide %v (one fewer: %v)", margin, n, got, less)
		}
	}
}
