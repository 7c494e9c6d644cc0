package bench

import (
	"maps"
	"math"
	"slices"
)

// A second estimate beside the median one. The Hodges–Lehmann estimate says what a block loses as a rule, and hardly moves where one arm
// alone stalls in one trial of ten; what all blocks lose together does. Neither is wrong: they are different questions, and
// `equivalent` is to be true of both.

// blocks are what was measured in the blocks that have both arms, more being better: of times, the inverse order.
type blocks struct{ ref, arm []float64 }

// inBlocks returns the rounds that have both, in their order.
func inBlocks(ref, arm map[int]float64) (b blocks) {
	for _, round := range slices.Sorted(maps.Keys(arm)) {
		if r, a := ref[round], arm[round]; r > 0 && a > 0 {
			b.ref, b.arm = append(b.ref, r), append(b.arm, a)
		}
	}
	return b
}

// logs returns ln(arm / ref) of each block.
func (b blocks) logs() []float64 {
	d := make([]float64, len(b.arm))
	for i := range d {
		d[i] = math.Log(b.arm[i] / b.ref[i])
	}
	return d
}

// Totals is the penalty of all blocks together: the ratio of the sums. Its interval is Fieller's (1954) for a ratio of means of
// pairs, with Student's t: good for noise that is not too skewed, never exact.
type Totals struct {
	PenaltyPct float64     `json:"penalty_pct"`
	CI95Pct    *[2]float64 `json:"ci95_pct,omitempty"` // absent: it has no two ends
	CI90Pct    *[2]float64 `json:"ci90_pct,omitempty"`
}

// moments of a sample of pairs.
type moments struct{ n, x, y, xx, yy, xy float64 } // number, means, variances and covariance

func (b blocks) moments() moments {
	m := moments{n: float64(len(b.arm))}
	for i := range b.arm {
		m.x, m.y = m.x+b.arm[i]/m.n, m.y+b.ref[i]/m.n
	}
	for i := range b.arm {
		dx, dy := b.arm[i]-m.x, b.ref[i]-m.y
		m.xx, m.yy, m.xy = m.xx+dx*dx/(m.n-1), m.yy+dy*dy/(m.n-1), m.xy+dx*dy/(m.n-1)
	}
	return m
}

// ratio returns ln(Σarm / Σref) and Fieller's interval of the level 1 − alpha, nil where it has no two ends above 0.
func (m moments) ratio(alpha float64) *Interval {
	if m.n < minPilot {
		return nil
	}
	t := studentQuantile(1-alpha/2, m.n-1)
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

// judge compares the arms of blocks by both estimates.
func (b blocks) judge(marginPct float64, toPct func(float64) float64) *Comparison {
	d := b.logs()
	c := judge(d, marginPct, toPct)
	if c == nil {
		return nil
	}
	m, e := b.moments(), estimate(d)
	i90 := m.ratio(.10)
	c.Totals = &Totals{PenaltyPct: toPct(math.Log(m.x / m.y)), CI95Pct: percent(m.ratio(.05), toPct), CI90Pct: percent(i90, toPct)}
	c.Verdict = both(e, i90, logMargin(marginPct))
	c.Could, c.AtCould = nil, Undecided
	if could, ok := decidable(e); ok && i90 != nil { // else no margin is
		could = max(could, (i90.Hi-i90.Lo)*(1+3*hair))
		pct := toPct(-could)
		c.Could, c.AtCould = &pct, both(e, i90, could)
	}
	return c
}

// both is decide, with `equivalent` said of the totals too, of which i90 is the interval.
func both(e Estimate, i90 *Interval, margin float64) Verdict {
	v, inner := decide(e, margin), margin*(1-hair)
	if v != Equivalent || i90 != nil && -inner < i90.Lo && i90.Hi < inner {
		return v
	}
	return decide(Estimate{I95: e.I95}, margin) // a difference that is certain stays one
}

// tests adds the p-values of both estimates to a comparison.
func (b blocks) tests(marginPct float64) Tests {
	d, margin := b.logs(), logMargin(marginPct)
	return Tests{P: differs(d), PEquiv: max(notEquivalent(d, margin), b.moments().notWithin(margin*(1-hair))), Corrected: Undecided}
}
