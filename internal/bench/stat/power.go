package stat

import "math"

// How many pairs a run needs. The calculation is the usual one for two one-sided tests whose spread was estimated from
// a pilot (Julious and Owen 2006). It uses no standard deviation: the spread is read off the width of the pilot's
// signed-rank interval (Lehmann 1963), so that heavy tails and stalls count as much as they will count in the run.
// docs/METHOD.md has the reasoning; TestPairsNeeded shows the power that results.

// minPilot is the size of the smallest pilot: fewer pairs have no 90 % interval, so no spread can be estimated.
const minPilot = 5

// mostPairs is what PairsNeeded returns where even more would be needed.
const mostPairs = 1_000_000

// PairsNeeded returns how many pairs decide the margin (percent of the host's throughput, above 0 and below 100) with
// 90 % power where the arms do not differ. Deciding means the verdict `equivalent`: two one-sided tests at 5 % each.
// pilot holds the log ratios of a pilot's pairs; their centre does not matter.
//
// The power is an average over all pilots that could have been drawn: a small pilot estimates the spread badly, so more
// pairs are needed. The run must not count the pilot's own pairs. ok is false with fewer than 5 pilot pairs. The result is
// between MinPairs and a million.
func PairsNeeded(pilot []float64, marginPct float64) (pairs int, ok bool) {
	spread, ok := pairSpread(pilot)
	if !ok {
		return 0, false
	}
	n := math.Pow(powerFactor(len(pilot)-1)*spread/LogMargin(marginPct), 2) + fewPairs
	return int(math.Ceil(min(max(n, MinPairs), mostPairs))), true
}

// MarginFor is the inverse of PairsNeeded: it returns the smallest margin, in percent of the host's throughput, that a run
// of so many pairs decides with 90 % power. Reports give it where the time does not allow for PairsNeeded. ok is false with
// fewer than 5 pilot pairs, or fewer than MinPairs pairs.
func MarginFor(pilot []float64, pairs int) (marginPct float64, ok bool) {
	spread, ok := pairSpread(pilot)
	if !ok || pairs < MinPairs {
		return 0, false
	}
	return Penalty(-powerFactor(len(pilot)-1) * spread / math.Sqrt(float64(pairs)-fewPairs)), true
}

// fewPairs are added because a short run's interval is wider than the normal approximation says: the correction of
// Guenther (1981) for a one-sample t test, z²/2 = 1.35 at 5 %, rounded up.
const fewPairs = 2

// pairSpread estimates what one pair adds to the standard error of the Hodges–Lehmann estimate, times √n: half the
// width of the signed-rank interval, divided by the normal quantile of the level that it really has (Lehmann,
// Nonparametric Confidence Intervals for a Shift Parameter, 1963). For normal data that is σ·√(π/3).
func pairSpread(d []float64) (float64, bool) {
	n := len(d)
	if n < minPilot {
		return 0, false
	}
	w, k := walsh(d), signedRankDepth(n, .10)
	// k is the depth at which at most 5 % lie outside on either side; the level between the steps of a small sample is
	// taken in the middle of the last one (the usual correction of continuity).
	mean, sd := float64(n)*float64(n+1)/4, math.Sqrt(float64(n)*float64(n+1)*float64(2*n+1)/24)
	z := (mean - float64(k) + .5) / sd
	return (w[len(w)-k] - w[k-1]) / 2 / z * math.Sqrt(float64(n)), true
}

// powerFactor returns the factor a for which a run of (a·spread/margin)² pairs has 90 % power on average, if the spread was
// estimated with so many degrees of freedom: the 95 % quantile of the noncentral t distribution with noncentrality z(95 %).
// Both one-sided tests are at 5 %, and each fails in 5 % of the runs. If the spread is known, a is 2·1.645.
func powerFactor(freedom int) float64 {
	lo, hi := 2*z95, 60.
	for range 40 {
		if a := (lo + hi) / 2; keeps(a, freedom) < .95 {
			lo = a
		} else {
			hi = a
		}
	}
	return hi
}

const z95 = 1.6448536269514722 // 95 % quantile of the normal distribution

// keeps returns the mean of Φ(a·S − z95), where S is the estimated spread divided by the true one: S² ~ χ²/ν.
func keeps(a float64, freedom int) float64 {
	v := float64(freedom)
	lg, _ := math.Lgamma(v / 2)
	const steps = 400
	top := 1 + 12/math.Sqrt(2*v) // no weight beyond it
	sum := 0.
	for i := range steps { // rectangles, the weights of their middles
		s := (float64(i) + .5) * top / steps
		// the density of S: that of χ²/ν at s², times 2s
		logf := math.Ln2 + v/2*math.Log(v/2) - lg + (v-1)*math.Log(s) - v*s*s/2
		sum += math.Exp(logf) * math.Erfc(-(a*s-z95)/math.Sqrt2) / 2
	}
	return sum * top / steps
}

// LeastPairs returns the smallest n for which the smallest possible p-value, 2/2ⁿ, passes Holm's correction over so many
// comparisons.
func LeastPairs(tests int) int {
	n := MinPairs
	for 2/math.Pow(2, float64(n)) > .05/float64(tests) {
		n++
	}
	return n
}

// Centred moves the mean to 0 and stretches the residuals, so that the estimate of their spread has no bias.
func Centred(d []float64) []float64 {
	mean, n := 0.0, float64(len(d))
	for _, v := range d {
		mean += v / n
	}
	c := make([]float64, len(d))
	for i, v := range d {
		c[i] = (v - mean) * math.Sqrt(n/(n-1))
	}
	return c
}
