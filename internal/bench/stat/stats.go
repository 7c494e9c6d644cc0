// Package stat computes intervals, verdicts and p-values of comparisons in pairs; it does no I/O.
package stat

import (
	"math"
	"slices"
)

// The statistics of a paired comparison. Nothing here does I/O; docs/METHOD.md has the reasoning and the sources.
//
// The datum of one block is d = ln(node throughput / host throughput). Inside a block the arms run in random order. So if
// the arms do not differ, the sign of each d is a fair coin, whatever drift, bursts or outliers the device shows
// (randomization test: Fisher, The Design of Experiments, 1935). That is all that the Wilcoxon signed-rank test needs
// (Wilcoxon 1945), and its intervals are the ones used here (Hodges and Lehmann 1963; Hollander, Wolfe and Chicken,
// Nonparametric Statistical Methods, 3rd ed. 2014, chapter 3): exact at small numbers of pairs, with heavy tails too.

// MinPairs is the smallest number of pairs that has a 95 % interval: five pairs reach 93.75 % at most (1 − 2/2⁵).
const MinPairs = 6

// Interval is a confidence interval. Its ends belong to it.
type Interval struct{ Lo, Hi float64 }

// Estimate is a location and its intervals, in the unit of the sample.
type Estimate struct {
	Pairs  int
	Center float64   // Hodges–Lehmann: the median of all Walsh averages
	I95    *Interval // two-sided 95 %; nil with fewer than 6 pairs
	I90    *Interval // two-sided 90 %: the two one-sided tests at 5 % each; nil with fewer than 5 pairs
}

// NewEstimate locates the sample d, which must not be empty.
func NewEstimate(d []float64) Estimate {
	w := walsh(d)
	e := Estimate{Pairs: len(d), Center: (w[(len(w)-1)/2] + w[len(w)/2]) / 2}
	e.I95 = signedRankInterval(w, len(d), 0.05)
	e.I90 = signedRankInterval(w, len(d), 0.10)
	return e
}

// walsh returns the means of all pairs of d, each with itself as well, in rising order.
func walsh(d []float64) []float64 {
	w := make([]float64, 0, len(d)*(len(d)+1)/2)
	for i := range d {
		for j := i; j < len(d); j++ {
			w = append(w, tied((d[i]+d[j])/2))
		}
	}
	slices.Sort(w)
	return w
}

// tied returns 0 for a value that differs from 0 by rounding alone: ln(a/b) + ln(b/a) is 0 or ±10⁻¹⁷, depending on how the logarithms
// are rounded, and its sign would enter the statistic. No measurement resolves 10⁻¹² of a ratio.
func tied(mean float64) float64 {
	if math.Abs(mean) < 1e-12 {
		return 0
	}
	return mean
}

// signedRankInterval returns the interval whose level is at least 1 − alpha: from the k-th smallest to the k-th largest
// of the n(n+1)/2 Walsh averages w, with the largest k for which 2·P(T < k) ≤ alpha. T is the signed-rank statistic of
// n pairs. It is nil if no k fulfils that.
func signedRankInterval(w []float64, n int, alpha float64) *Interval {
	k := signedRankDepth(n, alpha)
	if k == 0 {
		return nil
	}
	return &Interval{Lo: w[k-1], Hi: w[len(w)-k]}
}

// signedRankDepth returns the k of signedRankInterval. The distribution of T is exact up to 200 pairs, normal above.
func signedRankDepth(n int, alpha float64) int {
	if n > 200 {
		mean, variance := float64(n)*float64(n+1)/4, float64(n)*float64(n+1)*float64(2*n+1)/24
		z := math.Sqrt2 * math.Erfinv(1-alpha)
		return int(mean - z*math.Sqrt(variance))
	}
	tail := 0.0
	for k, p := range signedRank(n) {
		if tail += p; 2*tail > alpha {
			return k
		}
	}
	return 0
}

// signedRank returns P(T = t) for t = 0 … n(n+1)/2: each rank r = 1 … n is added with probability ½.
func signedRank(n int) []float64 {
	p := make([]float64, n*(n+1)/2+1)
	p[0] = 1
	top := 0
	for r := 1; r <= n; r++ {
		top += r
		for t := top; t >= 0; t-- {
			if t >= r {
				p[t] = (p[t] + p[t-r]) / 2
			} else {
				p[t] /= 2
			}
		}
	}
	return p
}

// Verdict is what a comparison says about an arm, against a margin.
type Verdict string

// The verdicts.
const (
	Equivalent Verdict = "equivalent" // the 90 % interval lies inside the margin: two one-sided tests at 5 % (Schuirmann 1987)
	Worse      Verdict = "worse"      // not equivalent, and the 95 % interval lies on the worse side of no difference
	Better     Verdict = "better"     // not equivalent, and the 95 % interval lies on the better side
	Undecided  Verdict = "undecided"  // neither was shown
)

// Decide judges log ratios of throughput against a margin that is a log ratio too (see logMargin).
// A difference that is certain but smaller than the margin is `equivalent`.
func Decide(e Estimate, margin float64) Verdict {
	margin *= 1 - Hair
	switch {
	case e.I90 != nil && -margin < e.I90.Lo && e.I90.Hi < margin:
		return Equivalent
	case e.I95 != nil && e.I95.Hi < 0:
		return Worse
	case e.I95 != nil && e.I95.Lo > 0:
		return Better
	}
	return Undecided
}

// decidable returns the smallest margin, as a log ratio, that a run with this spread would decide with 90 % power where
// the arms do not differ: the width of its 90 % interval. (For normal data that is the known formula
// (t(1−α) + t(1−β/2))·s/√n with α = 5 %, β = 10 %: Julious 2004; Chow, Shao and Wang 2003. Here it needs no normality:
// 90 % of the intervals hold 0, and such an interval lies within ± its own width.) ok is false with too few pairs.
// The result depends on the spread alone, not on the estimate.
func decidable(e Estimate) (margin float64, ok bool) {
	if e.I90 == nil {
		return 0, false
	}
	// The margin is a little larger than the width, because Decide compares strictly and an interval may begin at exactly 0.
	return (e.I90.Hi - e.I90.Lo) * (1 + 3*Hair), true
}

// Hair is the part of a margin that counts as outside. Where measurements come in steps, a mean can fall on the margin
// itself, and floating-point rounding would count some of these as inside.
const Hair = 1e-9

// LogMargin turns a margin in percent of the host's throughput, above 0 and below 100, into a log ratio: 5 % allows
// throughput ratios from 0.95 to 1/0.95.
func LogMargin(percent float64) float64 { return -math.Log1p(-percent / 100) }

// Penalty turns a log ratio of throughput into percent of the host's throughput that are lost; negative = gained.
func Penalty(logRatio float64) float64 {
	p := -100 * math.Expm1(logRatio)
	if p == 0 {
		return 0 // not −0
	}
	return p
}

// MedianOf returns the middle of x, or the mean of the two middle values, and 0 for an empty x.
func MedianOf(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(x))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// farOff is how many standard deviations away a trial counts as disturbed.
const farOff = 5

// Outliers counts the values that lie further than farOff standard deviations from the median. The standard deviation is
// estimated by 1.4826 times the median absolute deviation (Hampel 1974), and is at least 2 % of the median.
func Outliers(x []float64) int {
	m := MedianOf(x)
	dev := make([]float64, len(x))
	for i, v := range x {
		dev[i] = math.Abs(v - m)
	}
	sd := max(1.4826*MedianOf(dev), 0.02*math.Abs(m))
	n := 0
	for _, v := range dev {
		if v > farOff*sd {
			n++
		}
	}
	return n
}

// Extra turns a log ratio of costs, ln(host / arm), into the extra cost of an arm in percent of the host's.
func Extra(logRatio float64) float64 {
	p := 100 * math.Expm1(-logRatio)
	if p == 0 {
		return 0 // not −0
	}
	return p
}

// Paired estimates the difference of two arms that ran in each round in random order; d has one difference a round and must not
// be empty. It returns the Hodges–Lehmann estimate and its exact interval of level 1 − alpha, nil if there are too few rounds.
func Paired(d []float64, alpha float64) (center float64, ci *Interval) {
	w := walsh(d)
	return (w[(len(w)-1)/2] + w[len(w)/2]) / 2, signedRankInterval(w, len(d), alpha)
}

// Within judges an estimated difference in points against a bound. It returns Equivalent if the 90 % interval lies inside (two
// one-sided tests at 5 %), and Worse if the 95 % interval lies outside.
func Within(e Estimate, points float64) Verdict {
	switch {
	case e.I90 != nil && -points < e.I90.Lo && e.I90.Hi < points:
		return Equivalent
	case e.I95 != nil && (e.I95.Lo >= points || e.I95.Hi <= -points):
		return Worse
	}
	return Undecided
}

// Lesser returns the verdict that holds for both.
func Lesser(a, b Verdict) Verdict {
	switch {
	case a == Worse || b == Worse:
		return Worse
	case a == Undecided || b == Undecided:
		return Undecided
	}
	return Equivalent
}
