package plot

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// legible checks that texts lie within the drawing and do not overlap, and that paths are valid.
func legible(t *rapid.T, d Drawing) {
	type box struct{ x0, y0, x1, y1 float64 }
	var boxes []box
	for _, s := range d.Texts {
		x0, y0, x1, y1 := bounds(s)
		if x0 < -1 || x1 > Width+1 || y0 < -1 || y1 > d.Height+1 {
			t.Errorf("%q at %.0f..%.0f, %.0f..%.0f leaves the drawing, which is %d by %.0f", s.S, x0, x1, y0, y1, Width, d.Height)
		}
		for i, b := range boxes {
			if x0 < b.x1 && b.x0 < x1 && y0 < b.y1 && b.y0 < y1 {
				t.Errorf("%q overlaps %q", s.S, d.Texts[i].S)
			}
		}
		boxes = append(boxes, box{x0, y0, x1, y1})
	}
	for _, p := range d.Paths {
		if strings.Contains(p.D, "NaN") || strings.Contains(p.D, "Inf") || !pathData.MatchString(p.D) {
			t.Errorf("bad path %q", p.D)
		}
	}
	for _, r := range d.Rects {
		if r.W < 0 || r.H < 0 || r.X < 0 || r.X+r.W > Width || math.IsNaN(r.X+r.Y+r.W+r.H) {
			t.Errorf("bad rectangle %+v", r)
		}
	}
}

var pathData = regexp.MustCompile(`^([MLHVhvlamz](-?[0-9.e+]+ ?)*)+$`)

// anyNumber draws ordinary and odd results of benchmarks.
func anyNumber(t *rapid.T, name string) float64 {
	switch rapid.IntRange(0, 9).Draw(t, name+" kind") {
	case 0:
		return rapid.SampledFrom([]float64{0, -1, 1e300, -1e300, math.Inf(1), math.NaN(), 1e-300}).Draw(t, name)
	case 1:
		return rapid.Float64Range(-1000, 1e9).Draw(t, name)
	}
	return rapid.Float64Range(-100, 100).Draw(t, name)
}

func anySeries(t *rapid.T, xs []float64) []Series {
	var all []Series
	for i := range rapid.IntRange(0, 6).Draw(t, "series") {
		s := Series{
			Name: rapid.StringMatching(`[a-z ]{1,60}`).Draw(t, "name"), Mark: Mark(i % 5), Joined: rapid.Bool().Draw(t, "joined"),
		}
		for _, x := range xs {
			p := Point{X: x, Y: anyNumber(t, "y")}
			if rapid.Bool().Draw(t, "interval") {
				p.Interval = &[2]float64{anyNumber(t, "low"), anyNumber(t, "high")}
			}
			s.Points = append(s.Points, p)
		}
		all = append(all, s)
	}
	return all
}

func TestChartsAreLegible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var xs []float64
		for i := range rapid.IntRange(1, 70).Draw(t, "places") {
			xs = append(xs, float64(int(512)<<min(i, 20))+float64(i))
		}
		legible(t, Draw(Chart{
			X: Axis{Label: rapid.StringMatching(`[a-z ]{0,90}`).Draw(t, "x label"), Scale: Scale(rapid.IntRange(0, 2).Draw(t, "x scale")), Format: Bytes},
			Y: Axis{
				Label: rapid.StringMatching(`[a-z ]{0,90}`).Draw(t, "y label"), Scale: Scale(rapid.IntRange(0, 1).Draw(t, "y scale")),
				Zero: rapid.Bool().Draw(t, "zero"), Format: Thousands, Clip: &[2]float64{-100, 100},
			},
			Band: &[2]float64{-5, 5}, Series: anySeries(t, xs),
		}))
	})
}

func TestForestsAreLegible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var names []string
		var xs []float64
		for i := range rapid.IntRange(0, 30).Draw(t, "rows") {
			names, xs = append(names, rapid.StringMatching(`[a-z ]{0,90}`).Draw(t, "row")), append(xs, float64(i))
		}
		legible(t, DrawForest(Forest{
			Axis: Axis{Label: "IOPS, % less than on the host", Zero: true, Clip: &[2]float64{-100, 100}},
			Band: &[2]float64{-5, 5}, Rows: names, Series: anySeries(t, xs),
		}))
	})
}

// TestPlaces checks the places of points: larger is higher, 0 is on its line, block sizes are equally far apart.
func TestPlaces(t *testing.T) {
	d := Draw(Chart{
		X: Axis{Scale: Steps, Format: Bytes}, Y: Axis{Zero: true},
		Series: []Series{{Name: "a", Class: "a", Mark: Square, Points: []Point{{X: 4096, Y: 0}, {X: 8192, Y: 10}, {X: 16384, Y: 20}}}},
	})
	var at [][2]float64
	zero := ""
	for _, p := range d.Paths {
		if p.Class == "zero" {
			zero = p.D
		}
		if p.Class == "mark a" {
			f := strings.FieldsFunc(p.D, func(r rune) bool { return strings.ContainsRune("Mh v", r) })
			x, errX := strconv.ParseFloat(f[0], 64)
			y, errY := strconv.ParseFloat(f[1], 64)
			if errX != nil || errY != nil {
				t.Fatalf("path %q", p.D)
			}
			at = append(at, [2]float64{x + 3.5, y + 3.5})
		}
	}
	at = at[1:] // the legend's
	if len(at) != 3 || !strings.Contains(zero, fmt.Sprintf(" %gH", at[0][1])) {
		t.Fatalf("points at %v, zero line %q", at, zero)
	}
	if a, b := at[1][0]-at[0][0], at[2][0]-at[1][0]; math.Abs(a-b) > 0.2 || a <= 0 {
		t.Errorf("not equally far apart: %v", at)
	}
	if a, b := at[0][1]-at[1][1], at[1][1]-at[2][1]; math.Abs(a-b) > 0.2 || a <= 0 {
		t.Errorf("not on a linear scale: %v", at)
	}
}

// bounds returns the approximate bounds of a text.
func bounds(t Text) (x0, y0, x1, y1 float64) {
	w := textWidth(t.S)
	x := t.X
	switch t.Anchor {
	case "middle":
		x -= w / 2
	case "end":
		x -= w
	}
	return x, t.Y - fontSize*0.8, math.Min(x+w, Width), t.Y + fontSize*0.2
}
