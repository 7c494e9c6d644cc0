package stat

import "math"

// Mean returns the mean of x; NaN of nothing.
func Mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

func variance(x []float64) float64 {
	m, sum := Mean(x), 0.0
	for _, v := range x {
		sum += (v - m) * (v - m)
	}
	return sum / float64(len(x)-1)
}

// Welch estimates how much larger the mean of b is than that of a, by Welch's t test (Welch 1947): their spreads need not be equal.
// Both need at least two values.
func Welch(a, b []float64) Estimate {
	va, vb := variance(a)/float64(len(a)), variance(b)/float64(len(b))
	e := Estimate{Center: Mean(b) - Mean(a)}
	se, freedom := math.Sqrt(va+vb), float64(len(a)+len(b)-2)
	if se > 0 {
		freedom = (va + vb) * (va + vb) / (va*va/float64(len(a)-1) + vb*vb/float64(len(b)-1))
	}
	half := se * StudentQuantile(.975, freedom)
	e.I95 = &Interval{e.Center - half, e.Center + half}
	half = se * StudentQuantile(.95, freedom)
	e.I90 = &Interval{e.Center - half, e.Center + half}
	return e
}
