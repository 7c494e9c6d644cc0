package plot

import (
	"math"
	"slices"
)

// ruler places numbers on an axis of a given length.
type ruler struct {
	axis   Axis
	ticks  []float64
	values []float64 // for Steps: the values that occur, ascending
	from   float64   // coordinate of the begin of the axis
	to     float64   // coordinate of its end
}

// newRuler chooses about wanted ticks for the values and intervals that of returns. shown is a range that must be visible;
// nil for none.
func newRuler(a Axis, all []Series, of func(Point) (float64, *[2]float64), shown *[2]float64, wanted int) ruler {
	r := ruler{axis: a}
	lo, hi := math.Inf(1), math.Inf(-1)
	add := func(v float64) { lo, hi = math.Min(lo, v), math.Max(hi, v) }
	for _, s := range all {
		for _, p := range s.Points {
			v, interval := of(p)
			add(v)
			r.values = append(r.values, v)
			if interval != nil {
				add(r.clip(interval[0]))
				add(r.clip(interval[1]))
			}
		}
	}
	if shown != nil {
		add(shown[0])
		add(shown[1])
	}
	if a.Zero {
		add(0)
	}
	if math.IsInf(lo, 0) {
		lo, hi = 1, 10 // nothing to draw
	}
	switch a.Scale {
	case Linear:
		r.ticks = linearTicks(lo, hi, wanted)
	case Log:
		r.ticks = logTicks(math.Max(lo, 1e-15), math.Max(hi, 1e-15), wanted)
	case Steps:
		slices.Sort(r.values)
		r.values = slices.Compact(r.values)
		r.ticks = r.values
	}
	return r
}

// clip limits an end of an interval to the range of axis.Clip.
func (r *ruler) clip(v float64) float64 {
	if r.axis.Scale == Log {
		v = math.Max(v, 1e-15)
	}
	if c := r.axis.Clip; c != nil {
		v = math.Min(math.Max(v, c[0]), c[1])
	}
	return math.Min(math.Max(v, -1e15), 1e15)
}

// at returns the coordinate of v. A value outside the ticks lies outside the axis.
func (r *ruler) at(v float64) float64 {
	if r.axis.Scale == Steps {
		i, _ := slices.BinarySearch(r.values, v)
		return r.from + (r.to-r.from)*(float64(i)+0.5)/float64(max(len(r.values), 1))
	}
	first, last := r.ticks[0], r.ticks[len(r.ticks)-1]
	if r.axis.Scale == Log {
		v, first, last = math.Log(math.Max(v, 1e-300)), math.Log(first), math.Log(last)
	}
	return r.from + (r.to-r.from)*(v-first)/(last-first)
}

// cut returns the coordinate of an end of an interval, limited to the axis, and whether the end lies outside.
func (r *ruler) cut(v float64) (place float64, outside bool) {
	place = r.at(v)
	lo, hi := math.Min(r.from, r.to), math.Max(r.from, r.to)
	return math.Min(math.Max(place, lo), hi), math.IsNaN(place) || place < lo-0.5 || place > hi+0.5
}

// label returns the label of a tick.
func (r *ruler) label(v float64) string {
	if r.axis.Format != nil {
		return r.axis.Format(v)
	}
	return Plain(v)
}

// cell returns the width of one value on an axis of scale Steps.
func (r *ruler) cell() float64 {
	return math.Abs(r.to-r.from) / float64(max(len(r.values), 1))
}
