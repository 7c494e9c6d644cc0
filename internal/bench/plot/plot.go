// Package plot lays out small charts (points with intervals over a common axis) as plain geometry, which a page draws as
// SVG. It knows no colours and writes no markup.
package plot

import (
	"math"
	"slices"
)

// Width is the width of every drawing, in pixels if the page does not scale it. It fits a telephone, and two or three
// drawings fit beside each other on a screen.
const Width = 380

// Scale maps numbers to positions on an axis.
type Scale int

// The scales.
const (
	Linear Scale = iota
	Log          // of positive numbers, with ticks at round decimal numbers
	Steps        // the values that occur, in order, equally far apart: block sizes, numbers of threads
)

// Axis is one side of a chart.
type Axis struct {
	Label  string // with the unit
	Scale  Scale
	Zero   bool                 // a linear axis includes 0
	Clip   *[2]float64          // intervals may be cut here, points may not
	Format func(float64) string // a tick's label
}

// Mark is the shape of a point: colours alone do not tell series apart.
type Mark int

// The marks.
const (
	Circle Mark = iota
	Square
	Triangle
	Diamond
	Cross
)

// Series is a set of points with one name and style.
type Series struct {
	Name   string // in the legend
	Class  string // CSS class
	Mark   Mark
	Joined bool // by a line
	Points []Point
}

// Point is one value, with its interval if it has one.
type Point struct {
	X, Y     float64
	Interval *[2]float64 // low, high
}

// Chart is a chart of Y over X.
type Chart struct {
	X, Y   Axis
	Band   *[2]float64 // a range of Y that is shaded, such as a margin
	Series []Series
}

// Drawing is a chart that is laid out. Its parts are in the order in which they are painted.
type Drawing struct {
	Height float64
	Rects  []Rect
	Paths  []Path
	Texts  []Text
}

// Rect is a filled rectangle.
type Rect struct {
	X, Y, W, H float64
	Class      string
}

// Path is a line or a mark, in the syntax of SVG's attribute d.
type Path struct{ D, Class string }

// Text is one line of text: X is its start, middle or end as Anchor says, Y its baseline.
type Text struct {
	X, Y   float64
	Anchor string
	Class  string
	S      string
	Full   string // the whole text if S was cut
}

// The sizes of a drawing.
const (
	fontSize  = 12.0
	lineH     = 17.0
	plotH     = 190.0
	rightGap  = 10.0
	whisker   = 3.5 // half the width of an interval's end
	charWidth = 0.6 // of a letter, in font sizes: more than most letters of a sans-serif font need
)

// textWidth returns an upper estimate of the width of a text.
func textWidth(s string) float64 {
	return float64(len([]rune(s))) * charWidth * fontSize
}

// fitText cuts a text that is wider than w in its middle, because names often differ at their ends. full is the whole text
// if it was cut.
func fitText(s string, w float64) (short, full string) {
	r := []rune(s)
	most := max(int(w/(charWidth*fontSize)), 1)
	if len(r) <= most {
		return s, ""
	}
	tail := (most - 1) / 3
	return string(r[:most-1-tail]) + "…" + string(r[len(r)-tail:]), s
}

// finite drops points that cannot be drawn (not finite, or not positive on a logarithmic axis) and empty series.
func finite(c Chart) []Series {
	bad := func(v float64, a Axis) bool {
		return math.IsNaN(v) || math.Abs(v) > 1e15 || a.Scale == Log && v < 1e-15
	}
	var all []Series
	for _, s := range c.Series {
		s.Points = slices.DeleteFunc(slices.Clone(s.Points), func(p Point) bool { return bad(p.X, c.X) || bad(p.Y, c.Y) })
		for i, p := range s.Points {
			if p.Interval != nil && (math.IsNaN(p.Interval[0]) || math.IsNaN(p.Interval[1])) {
				s.Points[i].Interval = nil
			}
		}
		if len(s.Points) > 0 {
			all = append(all, s)
		}
	}
	return all
}
