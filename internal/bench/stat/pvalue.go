package stat

import (
	"math"
	"slices"
)

// signedRankP returns P(T ≥ t) for the signed-rank statistic of n pairs without a difference. It is exact up to 200
// pairs, normal above, as signedRankDepth is.
func signedRankP(n, t int) float64 {
	if t <= 0 {
		return 1
	}
	if n > 200 {
		mean, variance := float64(n)*float64(n+1)/4, float64(n)*float64(n+1)*float64(2*n+1)/24
		return math.Erfc((float64(t)-0.5-mean)/math.Sqrt(2*variance)) / 2
	}
	p := 0.0
	for _, q := range slices.Backward(signedRank(n)[min(t, n*(n+1)/2+1):]) { // the smallest first: they add up exactly
		p += q
	}
	return min(p, 1)
}

// above returns the p-value of "the sample's location is at most at": small where it lies above. The statistic is the
// number of Walsh averages above it (Hollander, Wolfe and Chicken, 3.1); those that are equal to it do not count, which
// errs towards no difference.
func above(d []float64, at float64) float64 {
	t := 0
	for _, w := range walsh(d) {
		if tied(w-at) > 0 {
			t++
		}
	}
	return signedRankP(len(d), t)
}

func below(d []float64, at float64) float64 {
	neg := make([]float64, len(d))
	for i, v := range d {
		neg[i] = -v
	}
	return above(neg, -at)
}

// Differs is the two-sided p-value of no difference: at most 0.05 where the 95 % interval excludes 0.
func Differs(d []float64) float64 { return min(1, 2*min(above(d, 0), below(d, 0))) }

// NotEquivalent is the p-value of "the difference is the margin or more": the larger of the two one-sided tests'
// (Schuirmann 1987), at most 0.05 where the 90 % interval lies inside the margin, a log ratio.
func NotEquivalent(d []float64, margin float64) float64 {
	margin *= 1 - Hair // as decide
	return max(above(d, -margin), below(d, margin))
}
