package bench

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// Percent is an estimate in percent and its 95 % interval, nil where there are too few rounds for one.
type Percent struct {
	Pct  float64     `json:"pct"`
	CI95 *[2]float64 `json:"ci95_pct,omitempty"`
}

// Protected says what protection does to what a service waits, with rounds as units. No round is left out.
type Protected struct {
	Rounds  int      `json:"rounds"`            // that have all three arms
	Added   Percent  `json:"added"`             // how much longer than alone the service waits unprotected
	Shorter Percent  `json:"shorter"`           // how much shorter than unprotected it waits protected: 0 where the two are the same
	Removed *Percent `json:"removed,omitempty"` // of what neighbours add; nil where it is not shown that they add anything
}

// Protection compares three arms by what was waited in them (not 0), by round; nil where no round has all of them.
//
// Added and Shorter are ratios with the exact interval of a randomised block (stats.go). Removed is the ratio
// ϑ = (unprotected − protected) / (unprotected − alone), in percent: 100 is a wait as alone, 0 one as unprotected. Where
// neighbours add nothing it is 0/0, and any number would be noise, so it is told only where it is shown that they add.
func Protection(alone, unprotected, protected map[int]float64) *Protected {
	var p Protected
	var added, shorter, gone, there []float64
	for _, round := range slices.Sorted(maps.Keys(alone)) {
		a, u, q := alone[round], unprotected[round], protected[round]
		if a <= 0 || u <= 0 || q <= 0 {
			continue
		}
		added, shorter = append(added, math.Log(a/u)), append(shorter, math.Log(q/u))
		gone, there = append(gone, u-q), append(there, u-a)
	}
	if p.Rounds = len(added); p.Rounds == 0 {
		return nil
	}
	p.Added, p.Shorter = inPercent(estimate(added), extra), inPercent(estimate(shorter), penalty)
	if center, ci, ok := ratioOf(gone, there); ok {
		p.Removed = &Percent{Pct: 100 * center, CI95: &[2]float64{100 * ci.Lo, 100 * ci.Hi}}
	}
	return &p
}

// inPercent turns an estimate into percent; toPct may rise or fall.
func inPercent(e Estimate, toPct func(float64) float64) Percent {
	p := Percent{Pct: toPct(e.Center)}
	if e.I95 != nil {
		a, b := toPct(e.I95.Lo), toPct(e.I95.Hi)
		p.CI95 = &[2]float64{min(a, b), max(a, b)}
	}
	return p
}

// ratioOf estimates ϑ from pairs with x ≈ ϑ·y. Its interval holds each ϑ for which the signed-rank test at 5 % does not
// reject that x − ϑ·y lies about 0 (Fieller 1954, with ranks: Bennett, Confidence limits for a ratio using Wilcoxon's
// signed rank test, Biometrics 21, 1965). It is exact at ϑ = 0 and ϑ = 1, where the order of the arms decides the sign. ok is
// false unless y is shown to lie above 0: only then has the interval two ends.
//
// A pair of rounds i, j says ϑ < or > t = (xᵢ+xⱼ)/(yᵢ+yⱼ); the test counts on how many of these ϑ lies on the one side.
// So one pass over the t in rising order finds where it begins and where it ceases to accept.
func ratioOf(x, y []float64) (center float64, ci Interval, ok bool) {
	n := len(x)
	k := signedRankDepth(n, 0.05)
	if k == 0 || signedRankInterval(walsh(y), n, 0.05).Lo <= 0 {
		return 0, Interval{}, false
	}
	type step struct {
		at float64
		by int // of the count of x − ϑ·y > 0, when ϑ passes at
	}
	var steps []step
	count, all := 0, n*(n+1)/2
	for i := range n {
		for j := i; j < n; j++ {
			switch sx, sy := x[i]+x[j], y[i]+y[j]; {
			case sy > 0:
				steps, count = append(steps, step{sx / sy, -1}), count+1
			case sy < 0:
				steps = append(steps, step{sx / sy, 1})
			case sx > 0:
				count++
			}
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	ci = Interval{Lo: math.Inf(1), Hi: math.Inf(-1)}
	left, right := math.NaN(), math.NaN() // where the count passes its middle, first from above and last from above
	for _, s := range steps {
		before := count
		count += s.by
		// The values of the count on both sides of s.at, and s.at itself, which belongs to what it borders on.
		if min(before, count) <= all-k && max(before, count) >= k {
			ci.Lo, ci.Hi = min(ci.Lo, s.at), max(ci.Hi, s.at)
		}
		if 2*before > all && 2*count <= all && math.IsNaN(left) {
			left = s.at
		}
		if 2*before >= all && 2*count < all {
			right = s.at
		}
	}
	if math.IsNaN(left) || math.IsNaN(right) || ci.Lo > ci.Hi { // the count does not pass its middle: x is not about ϑ·y for any ϑ
		return 0, Interval{}, false
	}
	return (left + right) / 2, ci, true
}

// Ratio is how many times as much one arm's values are as another's, and its 95 % interval.
type Ratio struct {
	Rounds int         `json:"rounds"`
	Factor float64     `json:"factor"`
	CI95   *[2]float64 `json:"ci95,omitempty"`
}
