package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"berth/internal/bench/plot"
	"berth/internal/bench/result"
	"berth/internal/sys/text"
)

// Figure is a drawing with its caption and description.
type Figure struct {
	ID      string // unique in the page
	Caption string
	Desc    string // for screen readers
	plot.Drawing
}

// forestRows is the largest number of rows in one drawing without a common axis, so that it fits on a printed page.
const forestRows = 20

// figures draws an experiment: the penalty of each compared measure, the medians of rates, and latencies.
func figures(e *result.Experiment, marginPct float64) []Figure {
	var all []Figure
	for _, m := range e.Measures {
		if m.Compared {
			all = append(all, penalties(e, m, marginPct)...)
		}
	}
	var times []result.Measure
	for _, m := range e.Measures {
		if isTime(m) {
			times = append(times, m)
		} else {
			all = append(all, medians(e, []result.Measure{m}, false)...)
		}
	}
	all = append(all, latencies(e, times)...)
	for i := range all {
		all[i].ID = fmt.Sprintf("%s-%d", slug(e.Name), i+1)
	}
	return all
}

// slug makes an identifier of a name.
func slug(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(s))
}

// latencies draws percentiles, one chart per unit. If a unit has no percentiles, it draws the other times of that unit.
func latencies(e *result.Experiment, times []result.Measure) []Figure {
	var all []Figure
	for _, unit := range []string{"us", "ms", "s"} {
		var some []result.Measure
		for _, m := range times {
			if m.Unit == unit {
				some = append(some, m)
			}
		}
		if p := slices.DeleteFunc(slices.Clone(some), func(m result.Measure) bool { return !slices.Contains(drawn[:], brief(m)) }); len(p) > 0 {
			some = p
		}
		if _, common := axis(e); common && len(some) > 0 {
			all = append(all, medians(e, some[:min(len(some), 3)], true)...)
			continue
		}
		for _, m := range some { // one chart each: without lines the series could not be told apart
			if m.Compared {
				all = append(all, medians(e, []result.Measure{m}, false)...)
			}
		}
	}
	return all
}

// drawn are the percentiles of a chart. More lines for two arms could not be told apart.
var drawn = [...]string{"p50", "p99", "p99.9"}

// brief returns a short name of a measure: p99.9 for lat_p999_us.
func brief(m result.Measure) string {
	s := strings.TrimPrefix(strings.TrimSuffix(m.Name, "_"+m.Unit), "lat_")
	if digits, ok := strings.CutPrefix(s, "p"); ok && len(digits) > 2 && strings.Trim(digits, "0123456789") == "" {
		s = "p" + digits[:2] + "." + digits[2:]
	}
	return s
}

// axis returns the common axis of the rows. There is one (common) only if each row has a value, no two are equal, and
// there are at least two rows.
func axis(e *result.Experiment) (a plot.Axis, common bool) {
	seen := map[float64]bool{}
	for _, r := range e.Rows {
		if r.Value == nil || seen[*r.Value] {
			return plot.Axis{}, false
		}
		seen[*r.Value] = true
	}
	a = plot.Axis{Label: e.Axis.Label, Scale: plot.Steps}
	switch e.Axis.Unit {
	case "":
	case "B":
		a.Label, a.Format = a.Label+", bytes (K = 1024)", plot.Bytes
	default:
		a.Label += ", " + e.Axis.Unit
	}
	return a, len(seen) > 1
}

// place returns the X of row i: its value on a common axis, else i.
func place(r *result.Row, i int, common bool) float64 {
	if common {
		return *r.Value
	}
	return float64(i)
}

// penalties draws how much worse the arms are, beside the null arm and the published figures.
func penalties(e *result.Experiment, m result.Measure, marginPct float64) []Figure {
	x, common := axis(e)
	var all []plot.Series
	for _, arm := range append(compared(e), nullArm) {
		s := plot.Series{Name: armTitle(e, arm), Class: armClass(e, arm), Mark: armMark(e, arm)}
		for i := range e.Rows {
			if c := comparison(&e.Rows[i], arm, m.Name); c != nil {
				s.Points = append(s.Points, plot.Point{X: place(&e.Rows[i], i, common), Y: c.Penalty.PenaltyPct, Interval: c.Penalty.CI95Pct})
			}
		}
		all = append(all, s)
	}
	pub := plot.Series{Name: "published", Class: "s-pub", Mark: plot.Cross}
	for i := range e.Rows {
		for _, f := range allPrinted(&e.Rows[i], m.Name) {
			pub.Points = append(pub.Points, plot.Point{X: place(&e.Rows[i], i, common), Y: f.PenaltyPct})
		}
	}
	all = append(all, pub)
	if empty(all) {
		return nil
	}
	y := plot.Axis{Label: fmt.Sprintf("%s, %% %s than %s", m.Title, worseBy(m), the(e)), Zero: true, Clip: clip(all)}
	caption := fmt.Sprintf("Penalty with 95 %% intervals: %s (shaded: ±%s %%)", m.Title, percent(marginPct))
	band := &[2]float64{-marginPct, marginPct}
	return draw(e, caption, x, y, band, all, common)
}

// clip returns the range beyond which intervals are cut and end in arrows, so that a few very long intervals do not
// flatten all others.
func clip(all []plot.Series) *[2]float64 {
	c := [2]float64{-100, 100}
	for _, s := range all {
		for _, p := range s.Points {
			c[0], c[1] = math.Min(c[0], p.Y*1.1), math.Max(c[1], p.Y*1.1)
		}
	}
	return &c
}

// medians draws the medians of all arms in measures of one unit.
func medians(e *result.Experiment, ms []result.Measure, log bool) []Figure {
	x, common := axis(e)
	if !common && len(e.Rows) > forestRows {
		return nil // too many drawings; the table has the figures
	}
	factor, unit := inUnit(ms[0])
	var all []plot.Series
	for i, m := range ms {
		for _, arm := range append([]string{reference(e)}, compared(e)...) {
			s := plot.Series{Name: armTitle(e, arm), Class: armClass(e, arm), Mark: armMark(e, arm), Joined: common}
			if len(ms) > 1 {
				s.Name, s.Class = arm+" "+brief(m), fmt.Sprintf("%s dash-%d", s.Class, i)
			}
			for j := range e.Rows {
				if v := value(&e.Rows[j], arm, m.Name); v != nil {
					s.Points = append(s.Points, plot.Point{X: place(&e.Rows[j], j, common), Y: *v * factor})
				}
			}
			all = append(all, s)
		}
	}
	if empty(all) {
		return nil
	}
	title := named(ms[0])
	if len(ms) > 1 {
		title = "time, " + unit
		if unit == "µs" {
			title = "latency, µs"
		}
	}
	log = log || wide(all)
	y := plot.Axis{Label: title, Zero: !log, Format: plot.Thousands}
	if log {
		y.Scale, y.Label = plot.Log, title+" (logarithmic)"
	}
	return draw(e, "Medians: "+title, x, y, nil, all, common)
}

// wide reports whether values lie so far apart that a linear axis would hide the small ones.
func wide(all []plot.Series) bool {
	lo, hi := math.Inf(1), 0.0
	for _, s := range all {
		for _, p := range s.Points {
			lo, hi = math.Min(lo, p.Y), math.Max(hi, p.Y)
		}
	}
	return lo > 0 && hi > 20*lo
}

func empty(all []plot.Series) bool {
	for _, s := range all {
		if len(s.Points) > 0 {
			return false
		}
	}
	return true
}

// draw draws one chart over a common axis, or without one as many forests as the rows need.
func draw(e *result.Experiment, caption string, x, y plot.Axis, band *[2]float64, all []plot.Series, common bool) []Figure {
	desc := fmt.Sprintf("%s of %s. The numbers are in the tables beside it.", caption, text.Count(len(e.Rows), "row"))
	if common {
		d := plot.Draw(plot.Chart{X: x, Y: y, Band: band, Series: all})
		return []Figure{{Caption: caption, Desc: desc, Drawing: d}}
	}
	return forests(e, caption, desc, y, band, all)
}

// forests draws the rows that have at least one point.
func forests(e *result.Experiment, caption, desc string, y plot.Axis, band *[2]float64, all []plot.Series) []Figure {
	var rows []int
	for i := range e.Rows {
		if slices.ContainsFunc(all, func(s plot.Series) bool {
			return slices.ContainsFunc(s.Points, func(p plot.Point) bool { return int(p.X) == i })
		}) {
			rows = append(rows, i)
		}
	}
	var figs []Figure
	for some := range slices.Chunk(rows, forestRows) {
		f := plot.Forest{Axis: y, Band: band, Extent: all}
		for _, i := range some {
			f.Rows = append(f.Rows, e.Rows[i].Name)
		}
		for _, s := range all {
			part := s
			part.Points = nil
			for _, p := range s.Points {
				if i := slices.Index(some, int(p.X)); i >= 0 {
					p.X = float64(i)
					part.Points = append(part.Points, p)
				}
			}
			f.Series = append(f.Series, part)
		}
		title := caption
		if len(rows) > forestRows {
			from := len(figs) * forestRows
			title = fmt.Sprintf("%s, rows %d to %d of %d", caption, from+1, from+len(some), len(rows))
		}
		figs = append(figs, Figure{Caption: title, Desc: desc, Drawing: plot.DrawForest(f)})
	}
	return figs
}

func armTitle(e *result.Experiment, arm string) string {
	if arm == nullArm {
		return reference(e) + " again"
	}
	for _, a := range e.Arms {
		if a.Name == arm && a.Title != "" {
			return a.Title
		}
	}
	return arm
}

// emulated says what emulates the CPU of an arm, "" where nothing does.
func emulated(e *result.Experiment, arm string) string {
	for _, a := range e.Arms {
		if a.Name == arm {
			return a.Emulated
		}
	}
	return ""
}

// armClass returns the style of an arm. It and the shape (armMark) are the same in all charts of a page.
func armClass(e *result.Experiment, arm string) string {
	switch arm {
	case reference(e):
		return "s-host"
	case nullArm:
		return "s-null"
	}
	return fmt.Sprintf("s-%d", index(e, arm)%4)
}

func armMark(e *result.Experiment, arm string) plot.Mark {
	switch arm {
	case reference(e), nullArm:
		return plot.Circle
	}
	return []plot.Mark{plot.Square, plot.Triangle, plot.Diamond, plot.Cross}[index(e, arm)%4]
}

func index(e *result.Experiment, arm string) int {
	for i, a := range compared(e) {
		if a == arm {
			return i
		}
	}
	return 0
}
