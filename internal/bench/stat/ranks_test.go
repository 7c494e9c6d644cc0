package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Tails of the Mann–Whitney statistic: Hollander, Wolfe and Chicken, table A.6 (of U = W − n(n+1)/2), and counted by hand.
func TestMannWhitney(t *testing.T) {
	for _, c := range []struct {
		m, n, u int
		want    float64
	}{{1, 1, 1, .5}, {2, 2, 4, 1. / 6}, {3, 3, 9, 1. / 20}, {3, 5, 13, 4. / 56}, {5, 5, 21, 12. / 252}, {4, 0, 0, 1}} {
		p, got := mannWhitney(c.m, c.n), 0.0
		for _, v := range p[c.u:] {
			got += v
		}
		if len(p) != c.m*c.n+1 || math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%d and %d: P(U ≥ %d) = %v, want %v", c.m, c.n, c.u, got, c.want)
		}
	}
}

// One stratum of 3 and 5, all of the first above: 2/56. Two strata of 2 and 2, all above: 2/36. Equal values count for neither.
func TestRankSums(t *testing.T) {
	for _, c := range []struct {
		strata   [][2][]float64
		p, shift float64
	}{
		{[][2][]float64{{{11, 12, 13}, {1, 2, 3, 4, 5}}}, 2. / 56, 9},
		{[][2][]float64{{{11, 12}, {1, 2}}, {{111, 112}, {101, 102}}}, 2. / 36, 10},
		{[][2][]float64{{{1, 2}, {1, 2}}}, 1, 0},
		{nil, 1, 0},
	} {
		p, shift := RankSums(c.strata)
		if math.Abs(p-c.p) > 1e-12 || shift != c.shift {
			t.Errorf("%v: p %v, shift %v", c.strata, p, shift)
		}
	}
	r := rand.New(rand.NewPCG(1, 1)) // normal where it was exact: the two agree
	a, b := make([]float64, 70), make([]float64, 57)
	for i := range a {
		a[i] = r.NormFloat64() + .3
	}
	for i := range b {
		b[i] = r.NormFloat64()
	}
	exact, _ := RankSums([][2][]float64{{a, b}})
	normal, _ := RankSums([][2][]float64{{a, slices.Concat(b, b)}})
	if len(a)*len(b) > exactPairs || math.IsNaN(normal) || exact < .001 || exact > .5 {
		t.Errorf("exact %v, normal of twice the sample %v", exact, normal)
	}
}
