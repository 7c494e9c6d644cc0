package plot

import (
	"fmt"
	"math"
	"strings"
)

// Draw lays out a chart.
func Draw(c Chart) Drawing {
	all := finite(c)
	var d Drawing
	top := d.legend(all) + 26 // with a line for the label of the axis
	y := newRuler(c.Y, all, func(p Point) (float64, *[2]float64) { return p.Y, p.Interval }, c.Band, 5)
	x := newRuler(c.X, all, func(p Point) (float64, *[2]float64) { return p.X, nil }, nil, 6)
	left := 0.0
	for _, t := range y.ticks {
		left = math.Max(left, textWidth(y.label(t)))
	}
	left += 8
	y.from, y.to = top+plotH, top
	x.from, x.to = left, Width-rightGap
	if c.X.Scale != Steps { // keeps the first and last point off the frame
		x.from, x.to = left+8, Width-rightGap-8
	}
	d.text(Text{X: 0, Y: top - 12, Anchor: "start", Class: "label"}, c.Y.Label, Width)
	if c.Band != nil {
		hi, _ := y.cut(c.Band[1])
		lo, _ := y.cut(c.Band[0])
		d.Rects = append(d.Rects, Rect{X: left, Y: hi, W: Width - rightGap - left, H: lo - hi, Class: "band"})
	}
	d.gridY(&y, left)
	d.ticksX(&x, top+plotH)
	d.text(Text{X: (left + Width - rightGap) / 2, Y: top + plotH + 2*lineH, Anchor: "middle", Class: "label"}, c.X.Label, Width-left)
	d.Height = top + plotH + 2*lineH + 6
	for i, s := range all {
		d.series(s, &x, &y, dodge(i, all, &x))
	}
	return d
}

// text adds the text s, cut to width w.
func (d *Drawing) text(t Text, s string, w float64) {
	t.S, t.Full = fitText(s, w)
	d.Texts = append(d.Texts, t)
}

// legend draws the names of the series, in as many lines as needed, and returns the Y of its end.
func (d *Drawing) legend(all []Series) float64 {
	const swatch, gap = 30.0, 12.0
	x, y := 0.0, 0.0
	for _, s := range all {
		name, full := fitText(s.Name, Width-swatch)
		w := swatch + textWidth(name)
		if x > 0 && x+w > Width {
			x, y = 0, y+lineH
		}
		if s.Joined {
			d.path("line "+s.Class, "M%s %sh24", num(x), num(y+9))
		}
		d.mark(s, x+12, y+9)
		d.Texts = append(d.Texts, Text{X: x + swatch, Y: y + 13, Anchor: "start", Class: "legend", S: name, Full: full})
		x += w + gap
	}
	return y + lineH + 3
}

func (d *Drawing) gridY(y *ruler, left float64) {
	last := math.Inf(1)
	for _, t := range y.ticks {
		at := y.at(t)
		class := "grid"
		if t == 0 {
			class = "zero"
		}
		d.path(class, "M%s %sH%s", num(left), num(at), num(Width-rightGap))
		if last-at < fontSize {
			continue
		}
		last = at
		d.Texts = append(d.Texts, Text{X: left - 5, Y: at + 4, Anchor: "end", Class: "tick", S: y.label(t)})
	}
}

// ticksX draws the axis at the bottom. It leaves out labels that would overlap.
func (d *Drawing) ticksX(x *ruler, bottom float64) {
	d.path("axis", "M%s %sH%s", num(math.Min(x.from, x.to)), num(bottom), num(Width-rightGap))
	free := math.Inf(-1)
	for _, t := range x.ticks {
		at, s := x.at(t), x.label(t)
		d.path("axis", "M%s %sv4", num(at), num(bottom))
		half := textWidth(s) / 2
		at = math.Min(math.Max(at, half), Width-half) // labels at the ends move inwards
		if at-half < free {
			continue
		}
		free = at + half + 3
		d.Texts = append(d.Texts, Text{X: at, Y: bottom + lineH, Anchor: "middle", Class: "tick", S: s})
	}
}

// dodge returns the offset of the i-th series, so that intervals at one X stand beside each other.
func dodge(i int, all []Series, x *ruler) float64 {
	intervals := false
	for _, s := range all {
		for _, p := range s.Points {
			intervals = intervals || p.Interval != nil
		}
	}
	if !intervals || x.axis.Scale != Steps {
		return 0
	}
	step := math.Min(10, x.cell()*0.8/float64(len(all)))
	return (float64(i) - float64(len(all)-1)/2) * step
}

func (d *Drawing) series(s Series, x, y *ruler, aside float64) {
	if s.Joined {
		var b strings.Builder
		for i, p := range s.Points {
			fmt.Fprintf(&b, "%s%s %s", map[bool]string{true: "M", false: "L"}[i == 0], num(x.at(p.X)+aside), num(y.at(p.Y)))
		}
		d.path("line "+s.Class, "%s", b.String())
	}
	for _, p := range s.Points {
		at := x.at(p.X) + aside
		if p.Interval != nil {
			d.interval(s.Class, at, p.Interval, y)
		}
		d.mark(s, at, y.at(p.Y))
	}
}

// interval draws an upright whisker. An end that is cut off is an arrow.
func (d *Drawing) interval(class string, x float64, iv *[2]float64, y *ruler) {
	lo, below := y.cut(iv[0])
	hi, above := y.cut(iv[1])
	var b strings.Builder
	fmt.Fprintf(&b, "M%s %sV%s", num(x), num(lo), num(hi))
	for _, end := range []struct {
		at   float64
		cut  bool
		back float64
	}{{lo, below, -5}, {hi, above, 5}} {
		back := 0.0
		if end.cut {
			back = end.back
		}
		fmt.Fprintf(&b, "M%s %sL%s %sL%s %s", num(x-whisker), num(end.at+back), num(x), num(end.at), num(x+whisker), num(end.at+back))
	}
	d.path("whisker "+class, "%s", b.String())
}

// mark draws a point.
func (d *Drawing) mark(s Series, x, y float64) {
	const r = 4.0
	var p string
	switch s.Mark {
	case Circle:
		p = fmt.Sprintf("M%s %sa%s %s 0 1 0 %s 0a%s %s 0 1 0 %s 0z", num(x-r), num(y), num(r), num(r), num(2*r), num(r), num(r), num(-2*r))
	case Square:
		p = fmt.Sprintf("M%s %sh7v7h-7z", num(x-3.5), num(y-3.5))
	case Triangle:
		p = fmt.Sprintf("M%s %sl4.5 8h-9z", num(x), num(y-5))
	case Diamond:
		p = fmt.Sprintf("M%s %sl5 5l-5 5l-5 -5z", num(x), num(y-5))
	case Cross:
		d.path("cross "+s.Class, "M%s %sl7 7m-7 0l7 -7", num(x-3.5), num(y-3.5))
		return
	}
	d.path("mark "+s.Class, "%s", p)
}

func (d *Drawing) path(class, format string, args ...any) {
	d.Paths = append(d.Paths, Path{D: fmt.Sprintf(format, args...), Class: class})
}

// num prints a coordinate: a tenth of a pixel is enough.
func num(v float64) string {
	if v = math.Round(v*10) / 10; v == 0 {
		v = 0 // not −0
	}
	return fmt.Sprintf("%g", v)
}
