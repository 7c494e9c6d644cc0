package plot

import (
	"fmt"
	"strings"
)

// Forest is a chart of named rows, with one interval per series below each name, over one axis of values. Point.Y is the
// value, Point.X the index of its row.
type Forest struct {
	Axis   Axis // of the values
	Band   *[2]float64
	Rows   []string
	Series []Series
	Extent []Series // further series that the axis must cover, so that several drawings share it
}

// DrawForest lays out a forest. Its height grows with the rows.
func DrawForest(f Forest) Drawing {
	all := finite(Chart{Y: f.Axis, Series: f.Series})
	var d Drawing
	top := d.legend(all) + 4
	extent := append(finite(Chart{Y: f.Axis, Series: f.Extent}), all...)
	v := newRuler(f.Axis, extent, func(p Point) (float64, *[2]float64) { return p.Y, p.Interval }, f.Band, 5)
	v.from, v.to = 12, Width-12
	step := 11.0
	rowH := 19 + step*float64(max(len(all), 1))
	bottom := top + rowH*float64(len(f.Rows)) + 4
	if f.Band != nil {
		lo, _ := v.cut(f.Band[0])
		hi, _ := v.cut(f.Band[1])
		d.Rects = append(d.Rects, Rect{X: lo, Y: top, W: hi - lo, H: bottom - top, Class: "band"})
	}
	for _, t := range v.ticks {
		class := "grid"
		if t == 0 {
			class = "zero"
		}
		d.path(class, "M%s %sV%s", num(v.at(t)), num(top), num(bottom))
	}
	d.ticksX(&v, bottom)
	d.text(Text{X: Width / 2, Y: bottom + 2*lineH, Anchor: "middle", Class: "label"}, f.Axis.Label, Width)
	for i, name := range f.Rows {
		d.text(Text{X: 0, Y: top + float64(i)*rowH + 14, Anchor: "start", Class: "row"}, name, Width)
	}
	for i, s := range all {
		for _, p := range s.Points {
			y := top + p.X*rowH + 23 + float64(i)*step
			if p.Interval != nil {
				d.across(s.Class, y, p.Interval, &v)
			}
			d.mark(s, v.at(p.Y), y)
		}
	}
	d.Height = bottom + 2*lineH + 6
	return d
}

// across draws a horizontal whisker. An end that is cut off is an arrow.
func (d *Drawing) across(class string, y float64, iv *[2]float64, v *ruler) {
	lo, below := v.cut(iv[0])
	hi, above := v.cut(iv[1])
	var b strings.Builder
	fmt.Fprintf(&b, "M%s %sH%s", num(lo), num(y), num(hi))
	for _, end := range []struct {
		at   float64
		cut  bool
		back float64
	}{{lo, below, 5}, {hi, above, -5}} {
		back := 0.0
		if end.cut {
			back = end.back
		}
		fmt.Fprintf(&b, "M%s %sL%s %sL%s %s", num(end.at+back), num(y-whisker), num(end.at), num(y), num(end.at+back), num(y+whisker))
	}
	d.path("whisker "+class, "%s", b.String())
}
