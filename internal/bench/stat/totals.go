package stat

import (
	"maps"
	"math"
	"slices"
)

// This file holds the second estimate. The Hodges–Lehmann estimate says what a typical block loses; it hardly changes if one arm stalls in
// one trial of ten. The total of all blocks does change. They answer different questions, and the verdict `equivalent` needs both.

// Pairs holds the values of the blocks that have both arms. More is better: for times, the caller swaps the two.
type Pairs struct{ Ref, Arm []float64 }

// PairUp returns the rounds that have both arms, in the order of rounds.
func PairUp(ref, arm map[int]float64) (b Pairs) {
	for _, round := range slices.Sorted(maps.Keys(arm)) {
		if r, a := ref[round], arm[round]; r > 0 && a > 0 {
			b.Ref, b.Arm = append(b.Ref, r), append(b.Arm, a)
		}
	}
	return b
}

// Logs returns ln(arm / ref) of each block.
func (b Pairs) Logs() []float64 {
	d := make([]float64, len(b.Arm))
	for i := range d {
		d[i] = math.Log(b.Arm[i] / b.Ref[i])
	}
	return d
}

// Totals is the penalty of all blocks together: the ratio of the sums. Its interval is Fieller's (1954) for a ratio of means of
// pairs, with Student's t: good for noise that is not too skewed, never exact.
type Totals struct {
	PenaltyPct float64     `json:"penalty_pct"`
	CI95Pct    *[2]float64 `json:"ci95_pct,omitempty"` // absent: the interval has no two ends
	CI90Pct    *[2]float64 `json:"ci90_pct,omitempty"`
}

// moments of a sample of pairs.
type moments struct{ n, x, y, xx, yy, xy float64 } // number, means, variances and covariance

func (b Pairs) moments() moments {
	m := moments{n: float64(len(b.Arm))}
	for i := range b.Arm {
		m.x, m.y = m.x+b.Arm[i]/m.n, m.y+b.Ref[i]/m.n
	}
	for i := range b.Arm {
		dx, dy := b.Arm[i]-m.x, b.Ref[i]-m.y
		m.xx, m.yy, m.xy = m.xx+dx*dx/(m.n-1), m.yy+dy*dy/(m.n-1), m.xy+dx*dy/(m.n-1)
	}
	return m
}

// ratio returns ln(Σarm / Σref) and Fieller's interval of the level 1 − alpha, nil where it has no two ends above 0.
func (m moments) ratio(alpha float64) *Interval {
	if m.n < minPilot {
		return nil
	}
	t := StudentQuantile(1-alpha/2, m.n-1)
	k := t * t / m.n
	a, b, c := m.y*m.y-k*m.yy, m.x*m.y-k*m.xy, m.x*m.x-k*m.xx
	d := math.Sqrt(max(b*b-a*c, 0))
	if a <= 0 || b-d <= 0 {
		return nil
	}
	return &Interval{Lo: math.Log((b - d) / a), Hi: math.Log((b + d) / a)}
}

// notWithin is the p-value of "the totals differ by the margin or more", a log ratio: the larger of two one-sided t tests, at
// most 5 % where the 90 % interval lies inside.
func (m moments) notWithin(margin float64) float64 {
	if m.n < minPilot {
		return 1
	}
	above := func(at float64) float64 { // the p-value of "the ratio is at most at"
		mean, sd := m.x-at*m.y, math.Sqrt(max(m.xx-2*at*m.xy+at*at*m.yy, 0)/m.n)
		switch {
		case sd == 0 && mean > 0:
			return 0
		case sd == 0:
			return 1
		case mean < 0:
			return 1 - studentTail(-mean/sd, m.n-1)
		}
		return studentTail(mean/sd, m.n-1)
	}
	return max(above(math.Exp(-margin)), 1-above(math.Exp(margin)))
}

// Judge compares the arms of blocks by both estimates.
func (b Pairs) Judge(marginPct float64, toPct func(float64) float64) *Comparison {
	d := b.Logs()
	c := Judge(d, marginPct, toPct)
	if c == nil {
		return nil
	}
	m, e := b.moments(), NewEstimate(d)
	i90 := m.ratio(.10)
	c.Totals = &Totals{PenaltyPct: toPct(math.Log(m.x / m.y)), CI95Pct: Percents(m.ratio(.05), toPct), CI90Pct: Percents(i90, toPct)}
	c.Verdict = both(e, i90, LogMargin(marginPct))
	c.Could, c.AtCould = nil, Undecided
	if could, ok := decidable(e); ok && i90 != nil { // else no margin is
		could = max(could, (i90.Hi-i90.Lo)*(1+3*Hair))
		pct := toPct(-could)
		c.Could, c.AtCould = &pct, both(e, i90, could)
	}
	return c
}

// both is decide, with `equivalent` said of the totals too, of which i90 is the interval.
func both(e Estimate, i90 *Interval, margin float64) Verdict {
	v, inner := Decide(e, margin), margin*(1-Hair)
	if v != Equivalent || i90 != nil && -inner < i90.Lo && i90.Hi < inner {
		return v
	}
	return Decide(Estimate{I95: e.I95}, margin) // a difference that is certain stays one
}

// Tests returns the p-values of the pairs: of no difference (two-sided signed-rank test), and of "not equivalent" (the larger of
// the one-sided tests of both estimates against the margin).
func (b Pairs) Tests(marginPct float64) (differs, notEquivalent float64) {
	d, margin := b.Logs(), LogMargin(marginPct)
	return Differs(d), max(NotEquivalent(d, margin), b.moments().notWithin(margin*(1-Hair)))
}
