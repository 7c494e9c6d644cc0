package stat

import "math"

// This file is about values of one arm, one per round, that are not compared with another arm of the same round: an achieved rate, a
// share, a p99. No random order decides their signs, and the slow changes of the machine are in all of them, so that neighbouring rounds
// resemble each other.

// SerialEstimate estimates the location of such values, in the order of rounds. Its intervals are those of the signed-rank
// test, stretched by how much neighbouring rounds resemble each other (see stretch); where they do not, they are just those.
func SerialEstimate(x []float64) Estimate {
	e := NewEstimate(x)
	for _, i := range []struct {
		at *Interval
		p  float64
	}{{e.I95, .975}, {e.I90, .95}} {
		if i.at != nil {
			f := stretch(x, i.p)
			i.at.Lo, i.at.Hi = e.Center-f*(e.Center-i.at.Lo), e.Center+f*(i.at.Hi-e.Center)
		}
	}
	return e
}

// mostSerial is the largest correlation of neighbours that is reckoned with: with few rounds none is told from one.
const mostSerial = .8

// stretch is how many times as wide an interval for the mean of n values is, of which neighbours are correlated by ρ, as
// for independent ones: √(A·(n−1)/(n−A)), A = 1 + 2·Σ(1−k/n)·ρᵏ, for the mean varies A times as much and the sample's spread
// is smaller than the truth (Priestley, Spectral Analysis and Time Series, 1981, section 5.3), times how much larger the
// t quantile is with n/A − 1 degrees of freedom than with n − 1, but not fewer than two (Bayley and Hammersley 1946). ρ is the sample's first autocorrelation r freed of most of
// its bias, (r + 1/n) / (1 − 3/n): E r ≈ ρ − (1 + 3ρ)/n, Marriott and Pope, Bias in the Estimation of Autocorrelations, Biometrika 41, 1954.
func stretch(x []float64, p float64) float64 {
	n := float64(len(x))
	mean, all, next := 0.0, 0.0, 0.0
	for _, v := range x {
		mean += v / n
	}
	for i, v := range x {
		all += (v - mean) * (v - mean)
		if i > 0 {
			next += (v - mean) * (x[i-1] - mean)
		}
	}
	if all == 0 || n < 4 {
		return 1
	}
	rho := min((next/all+1/n)/(1-3/n), mostSerial)
	if rho <= 0 {
		return 1
	}
	a := 1.0
	for k := 1.0; k < n; k++ {
		a += 2 * (1 - k/n) * math.Pow(rho, k)
	}
	return math.Sqrt(a*(n-1)/(n-a)) * StudentQuantile(p, max(n/a-1, 2)) / StudentQuantile(p, n-1)
}

// RatioOfTotals returns what all pairs x, y say together, in the order of their rounds: Σx / Σy, and its 95 % interval where there are
// pairs enough (6): that of the mean of x − ratio·y, divided by the mean of y (Cochran, Sampling Techniques, 1977, section 6.4), by
// Student's t. It reckons with rounds that resemble their neighbours.
func RatioOfTotals(x, y []float64) (ratio float64, ci *Interval) {
	m := Pairs{Ref: y, Arm: x}.moments()
	if m.y <= 0 {
		return 0, nil
	}
	ratio = m.x / m.y
	if m.n < minPilot {
		return ratio, nil
	}
	off := make([]float64, len(x))
	for i := range x {
		off[i] = x[i] - ratio*y[i]
	}
	sd := math.Sqrt(max(m.xx-2*ratio*m.xy+ratio*ratio*m.yy, 0) / m.n)
	half := stretch(off, .975) * StudentQuantile(.975, m.n-1) * sd / m.y
	return ratio, &Interval{Lo: ratio - half, Hi: ratio + half}
}
