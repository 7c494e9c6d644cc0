package stat

import (
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// The tests of this file show what happens where the methods' assumptions do not hold. docs/METHOD.md has these figures;
// BERTH_RUNS=20000 makes them anew with more runs than a test has time for.

func simulations(usual int) int {
	if n, err := strconv.Atoi(os.Getenv("BERTH_RUNS")); err == nil && n > 0 {
		return n
	}
	return usual
}

// Part is how often something was so, in percent, and within which bounds it must be.
func part(t *testing.T, what string, n, of int, least, most float64) {
	t.Helper()
	got := 100 * float64(n) / float64(of)
	t.Logf("%s: %.1f %%", what, got)
	if got < least || got > most {
		t.Errorf("%s: %.1f %%, want %v to %v", what, got, least, most)
	}
}

// stalling makes blocks: noise of 2 % in both arms; of the node's trials one in ten does a third of its work.
func stalling(r *rand.Rand, pairs int) Pairs {
	var b Pairs
	for range pairs {
		arm := math.Exp(.02 * r.NormFloat64())
		if r.Float64() < .1 {
			arm /= 3
		}
		b.Ref, b.Arm = append(b.Ref, math.Exp(.02*r.NormFloat64())), append(b.Arm, arm)
	}
	return b
}

// Stalls of one arm alone: swapping the arms is then not all the same, and a pair as a rule loses nothing. All trials together
// lose 6.7 %: at a margin of 5 % that is not equivalent.
func TestStallsOfOneArm(t *testing.T) {
	runs, r := simulations(800), rand.New(rand.NewPCG(6, 1))
	for _, pairs := range []int{12, 20, 40} {
		pairwise, both, quiet, quietBoth := 0, 0, 0, 0
		for range runs {
			b := stalling(r, pairs)
			count(&pairwise, Decide(NewEstimate(b.Logs()), LogMargin(5)) == Equivalent)
			count(&both, b.Judge(5, Penalty).Verdict == Equivalent)
			same := Pairs{b.Ref, nil}
			for range pairs {
				same.Arm = append(same.Arm, math.Exp(.02*r.NormFloat64()))
			}
			count(&quiet, Decide(NewEstimate(same.Logs()), LogMargin(5)) == Equivalent)
			count(&quietBoth, same.Judge(5, Penalty).Verdict == Equivalent)
		}
		t.Logf("%d pairs", pairs)
		part(t, "  6.7 % lost in stalls, equivalent at 5 % by the pairs", pairwise, runs, 55, 100)
		part(t, "  6.7 % lost in stalls, equivalent by both", both, runs, 0, 32)
		part(t, "  no loss, equivalent by the pairs", quiet, runs, 99, 100)
		part(t, "  no loss, equivalent by both", quietBoth, runs, 99, 100)
	}
}

// TestBothEstimatesPower checks that stalls in both arms, and other wild noise, cost power: equivalent is said less often by both
// estimates, and the margin that could be decided grows with it.
func TestBothEstimatesPower(t *testing.T) {
	runs, r := simulations(400), rand.New(rand.NewPCG(6, 2))
	for _, n := range noises() {
		decided, wrong := 0, 0
		for range runs {
			next := n.next(r)
			var b Pairs
			for range 12 {
				x, y, z := next(), next(), next()
				v := [3]float64{x, y, z}
				at := r.Perm(3)
				b.Ref, b.Arm = append(b.Ref, math.Exp(v[at[0]])), append(b.Arm, math.Exp(v[at[1]]))
			}
			c := b.Judge(5, Penalty)
			count(&decided, c.AtCould != Undecided)
			count(&wrong, c.AtCould == Worse || c.AtCould == Better || c.Verdict == Worse || c.Verdict == Better)
		}
		part(t, n.name+": decided at what could be decided by both", decided, runs, 85, 100)
		part(t, n.name+": called worse or better, there or at 5 %", wrong, runs, 0, 7)
	}
}

// Sessions that differ (another file, another place on the disk): the interval of all pairs together takes the pairs of one for
// independent, and does not hold the mean over sessions as often as it says. compare, whose units are sessions, does.
func TestPooledSessions(t *testing.T) {
	runs, r := simulations(1500), rand.New(rand.NewPCG(6, 4))
	for _, c := range []struct {
		sessions           int
		between            float64 // of sessions, in times of a pair's noise
		least, most        float64
		leastUnit, mostOne float64
	}{{3, .5, 65, 90, 93, 97}, {5, .5, 65, 90, 93, 97}, {5, .25, 80, 95, 93, 97}} {
		holds, units := 0, 0
		for range runs {
			var all, centers []float64
			for range c.sessions {
				level := c.between * r.NormFloat64()
				var one []float64
				for range 8 {
					one = append(one, level+r.NormFloat64())
				}
				all, centers = append(all, one...), append(centers, NewEstimate(one).Center)
			}
			i := NewEstimate(all).I95
			count(&holds, i.Lo <= 0 && 0 <= i.Hi)
			n, mean, square := float64(len(centers)), 0.0, 0.0
			for _, v := range centers {
				mean += v / n
			}
			for _, v := range centers {
				square += (v - mean) * (v - mean)
			}
			count(&units, math.Abs(mean) <= StudentQuantile(.975, n-1)*math.Sqrt(square/(n-1)/n))
		}
		t.Logf("%d sessions of 8 pairs, %v of a pair's noise between them", c.sessions, c.between)
		part(t, "  held by the interval of all pairs", holds, runs, c.least, c.most)
		part(t, "  held where sessions are units", units, runs, c.leastUnit, c.mostOne)
	}
}

// A page of 15 tables of 4 rows without a difference: a false call somewhere, with a correction for each table, and for the page.
func TestPageOfTables(t *testing.T) {
	runs, r := simulations(400), rand.New(rand.NewPCG(6, 5))
	byTable, byPage := 0, 0
	for range runs {
		var page []float64
		called := false
		for range 15 {
			var table []float64
			for range 4 {
				d := make([]float64, 16)
				for i := range d {
					d[i] = r.NormFloat64()
				}
				table = append(table, Differs(d))
			}
			for _, p := range Holm(table) {
				called = called || p <= .05
			}
			page = append(page, table...)
		}
		count(&byTable, called)
		called = false
		for _, p := range Holm(page) {
			called = called || p <= .05
		}
		count(&byPage, called)
	}
	part(t, "a page without a difference: some call, corrected table by table", byTable, runs, 35, 60)
	part(t, "  corrected over the page", byPage, runs, 0, 8)
}
