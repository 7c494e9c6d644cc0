package stat

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Percent is an estimate in percent and its 95 % interval, nil where there are too few rounds for one.
type Percent struct {
	Pct  float64     `json:"pct"`
	CI95 *[2]float64 `json:"ci95_pct,omitempty"`
}

// Protected says how protection changes the waits of a service. Its units are rounds; no round is left out.
type Protected struct {
	Rounds  int      `json:"rounds"`            // that have all three arms
	Added   Percent  `json:"added"`             // how much longer than alone the service waits unprotected
	Shorter Percent  `json:"shorter"`           // how much shorter than unprotected it waits protected: 0 where the two are the same
	Removed *Percent `json:"removed,omitempty"` // of what neighbours add; nil where it is not shown that they add anything
}

// Protection compares the waits of three arms, round by round; waits are above 0. It returns nil if no round has all three arms.
//
// Added and Shorter are ratios with the exact interval of a randomised block (stats.go). Removed is the ratio
// ϑ = (unprotected − protected) / (unprotected − alone), in percent: 100 means a wait as long as alone, 0 one as
// long as unprotected. If neighbours add nothing, the ratio is 0/0 and any number would be noise. So Removed is given only if
// the data show that neighbours add to the wait.
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
	p.Added, p.Shorter = inPercent(NewEstimate(added), Extra), inPercent(NewEstimate(shorter), Penalty)
	if center, ci, ok := ratioOf(gone, there); ok {
		p.Removed = &Percent{Pct: 100 * center, CI95: &[2]float64{100 * ci.Lo, 100 * ci.Hi}}
	}
	return &p
}

// inPercent turns an estimate into percent; toPct may be a rising or a falling function.
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
// signed rank test, Biometrics 21, 1965). It is exact at ϑ = 0 and ϑ = 1, where the random order of the arms decides the sign. ok is
// false unless y is shown to lie above 0: only then has the interval two ends.
//
// For each pair of rounds i, j the sign of ϑ − t with t = (xᵢ+xⱼ)/(yᵢ+yⱼ) decides; the test counts the pairs with a positive
// sign. So one pass over all t in rising order finds the first and the last ϑ that the test accepts.
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
		// The counts just below and just above s.at; s.at itself is accepted if one of them is.
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

// Text returns the predicate of a sentence whose subject is the wait.
func (p *Protected) Text(neighbours string) string {
	text := p.Shorter.text() + " shorter than unprotected"
	if p.Removed == nil {
		return text + "; what " + neighbours + " add to it was not shown, so no part of that is told"
	}
	return text + "; of what unprotected " + neighbours + " add to it, " + p.Removed.text() + " is gone"
}

func (p Percent) text() string {
	if p.CI95 == nil {
		return fmt.Sprintf("%.0f %% (few rounds)", p.Pct)
	}
	return fmt.Sprintf("%.0f %% (95 %%: %.0f to %.0f)", p.Pct, p.CI95[0], p.CI95[1])
}
