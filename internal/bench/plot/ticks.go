package plot

import (
	"math"
	"strconv"
	"strings"
)

// linearTicks returns about wanted round numbers, at least two. Their distance is 1, 2 or 5 times a power of ten, the first
// is at most lo, the last at least hi.
func linearTicks(lo, hi float64, wanted int) []float64 {
	if large := math.Max(math.Abs(lo), math.Abs(hi)); !(hi-lo > 1e-9*large) || hi-lo < 1e-12 { // one value, or none
		pad := math.Max(math.Abs(lo)*0.1, 1)
		lo, hi = lo-pad, hi+pad
	}
	step := roundUp((hi - lo) / float64(max(wanted, 1)))
	first, last := math.Floor(lo/step), math.Ceil(hi/step)
	var ticks []float64
	for i := first; i <= last; i++ {
		ticks = append(ticks, clean(i*step))
	}
	return ticks
}

// roundUp returns the least 1, 2 or 5 times a power of ten that is at least v, which is positive.
func roundUp(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= v*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// clean removes the rounding error of binary fractions: 3 × 0.1 is 0.3.
func clean(v float64) float64 {
	c, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 12, 64), 64)
	if err != nil || c == 0 {
		return 0 // not −0
	}
	return c
}

// logTicks returns about wanted round numbers for a logarithmic axis: 1, 2 and 5 times powers of ten, powers of ten, or
// every n-th power. The first is at most lo, the last at least hi; both are positive.
func logTicks(lo, hi float64, wanted int) []float64 {
	from, to := int(math.Floor(math.Log10(lo)+1e-9)), int(math.Ceil(math.Log10(hi)-1e-9))
	to = max(to, from+1)
	if 3*(to-from) <= wanted+2 {
		return fine(lo, hi, from, to)
	}
	every := max(1, (to-from+wanted-1)/max(wanted, 1))
	var ticks []float64
	for e := from; ; e += every {
		ticks = append(ticks, clean(math.Pow(10, float64(e))))
		if e >= to {
			return ticks
		}
	}
}

func fine(lo, hi float64, from, to int) []float64 {
	var ticks []float64
	for e := from; e <= to; e++ {
		for _, m := range []float64{1, 2, 5} {
			v := clean(m * math.Pow(10, float64(e)))
			if len(ticks) == 1 && v <= lo {
				ticks = ticks[:0] // start with the closer one
			}
			ticks = append(ticks, v)
			if len(ticks) > 1 && v >= hi {
				return ticks
			}
		}
	}
	return ticks
}

// Plain prints a number of an axis without a unit prefix: 0.25, −5, 1000.
func Plain(v float64) string {
	s := strconv.FormatFloat(clean(v), 'g', 8, 64)
	return strings.Replace(s, "-", "−", 1)
}

// Thousands prints a number of an axis with k for thousands, M for millions, G for thousands of millions: 1.5M.
func Thousands(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= u.size {
			return Plain(v/u.size) + u.name
		}
	}
	return Plain(v)
}

// Bytes prints a size with the binary units of block sizes: 512, 4K, 1M.
func Bytes(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1 << 30, "G"}, {1 << 20, "M"}, {1 << 10, "K"}} {
		if v >= u.size {
			return Plain(v/u.size) + u.name
		}
	}
	return Plain(v)
}
