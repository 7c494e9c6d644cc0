package stat

import "math"

// StudentQuantile returns the p-quantile, p above one half, of Student's t distribution with so many degrees of freedom,
// which need not be whole.
func StudentQuantile(p, freedom float64) float64 {
	lo, hi := 0., 1.
	for studentTail(hi, freedom) > 1-p {
		hi *= 2
	}
	for range 60 {
		if mid := (lo + hi) / 2; studentTail(mid, freedom) > 1-p {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// studentTail returns P(T > t) for t ≥ 0: half the regularised incomplete beta function of ν/(ν+t²) with ν/2 and ½
// (Abramowitz and Stegun, 26.7.1).
func studentTail(t, freedom float64) float64 {
	return incompleteBeta(freedom/(freedom+t*t), freedom/2, .5) / 2
}

// incompleteBeta is the regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8),
// which converges fast below (a+1)/(a+b+2); above, its mirror image is used.
func incompleteBeta(x, a, b float64) float64 {
	switch {
	case x <= 0:
		return 0
	case x >= 1:
		return 1
	case x > (a+1)/(a+b+2):
		return 1 - incompleteBeta(1-x, b, a)
	}
	ga, _ := math.Lgamma(a)
	gb, _ := math.Lgamma(b)
	gab, _ := math.Lgamma(a + b)
	front := math.Exp(gab-ga-gb+a*math.Log(x)+b*math.Log1p(-x)) / a
	const terms = 100
	f := 1.0
	for m := terms; m >= 1; m-- { // from its tail to its head
		k := float64(m)
		even := k * (b - k) * x / ((a + 2*k - 1) * (a + 2*k))
		odd := -(a + k - 1) * (a + b + k - 1) * x / ((a + 2*k - 2) * (a + 2*k - 1))
		f = 1 + odd/(1+even/f)
	}
	return front / f
}
