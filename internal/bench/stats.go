package bench

import (
	"math"
	"slices"
)

// The statistics of a paired comparison. Nothing here does I/O; docs/METHOD.md has the reasoning and the sources.
//
// The datum of one block is d = ln(node throughput / host throughput). Inside a block the arms run in random order, so
// where the arms do not differ the sign of each d is a fair coin, whatever drift, bursts or outliers the device shows
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

// estimate locates the sample d, which must not be empty.
func estimate(d []float64) Estimate {
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

// tied moves to 0 what differs from it by rounding alone: ln(a/b) + ln(b/a) is 0, or ±10⁻¹⁷, as the logarithms fall. Which side it
// lay on would then decide the statistic. No measurement tells 10⁻¹² of a ratio.
func tied(mean float64) float64 {
	if math.Abs(mean) < 1e-12 {
		return 0
	}
	return mean
}

// signedRankInterval returns the interval whose level is at least 1 − alpha: from the k-th smallest to the k-th largest
// of the n(n+1)/2 Walsh averages w, with the largest k for which 2·P(T < k) ≤ alpha. T is the signed-rank statistic of
// n pairs. It is nil where even k = 1 is too much.
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

// signedRank returns P(T = t) for t = 0 … n(n+1)/2: rank r is added or not, each with probability ½, for r = 1 … n.
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

// decide judges log ratios of throughput against a margin that is a log ratio too (see logMargin).
// A difference that is certain but smaller than the margin is `equivalent`.
func decide(e Estimate, margin float64) Verdict {
	margin *= 1 - hair
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
// an interval that holds 0, as 90 % of them do, lies within ± its own width.) ok is false with too few pairs.
// It depends on the spread alone, not on where the estimate fell.
func decidable(e Estimate) (margin float64, ok bool) {
	if e.I90 == nil {
		return 0, false
	}
	// Above the width, because decide compares strictly and an interval may begin at 0 exactly.
	return (e.I90.Hi - e.I90.Lo) * (1 + 3*hair), true
}

// hair is the part of a margin that belongs to its outside: where measurements come in steps, means fall on the margin
// itself, and the rounding of floating point would take some of them for inside.
const hair = 1e-9

// logMargin turns a margin in percent of the host's throughput, above 0 and below 100, into a log ratio: 5 % allows
// throughput ratios from 0.95 to 1/0.95.
func logMargin(percent float64) float64 { return -math.Log1p(-percent / 100) }

// penalty turns a log ratio of throughput into percent of the host's throughput that are lost; negative = gained.
func penalty(logRatio float64) float64 {
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

// outliers counts the values that lie further than farOff standard deviations from the median, the deviation being
// estimated by 1.4826 times the median absolute deviation (Hampel 1974), and by 2 % of the median at the least.
func outliers(x []float64) int {
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
