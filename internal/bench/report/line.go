package report

import (
	"slices"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// line is one comparison with its context.
type line struct {
	exp     *result.Experiment
	row     *result.Row
	arm     string
	measure result.Measure
	main    bool // the row is judged by this comparison
	c       *result.Comparison
	null    *result.Comparison // the null arm in the same measure; c itself if no node was measured
	printed *result.Figure     // the published figure; nil for none
}

// nullArm is the arm in which the reference is measured a second time.
const nullArm = "null"

// lines returns the comparisons of the nodes of an experiment, or those of the null arm if there are no others.
func lines(e *result.Experiment) []line {
	var all []line
	for i := range e.Rows {
		r := &e.Rows[i]
		seen := map[string]bool{}
		for j := range r.Compared {
			c := &r.Compared[j]
			if c.Penalty == nil || c.Arm == nullArm && hasNode(e) {
				continue
			}
			all = append(all, line{
				exp: e, row: r, arm: c.Arm, measure: measureOf(e, c.Measure), main: !seen[c.Arm], c: c,
				null: comparison(r, nullArm, c.Measure), printed: printedFor(e, r, c.Arm, c.Measure),
			})
			seen[c.Arm] = true
		}
	}
	return all
}

// hasNode reports whether e has arms other than the reference and the null arm.
func hasNode(e *result.Experiment) bool { return len(compared(e)) > 0 }

// compared returns the arms except the reference and the null arm, in the order of the experiment.
func compared(e *result.Experiment) []string {
	var arms []string
	for i, a := range e.Arms {
		if i > 0 && a.Name != nullArm {
			arms = append(arms, a.Name)
		}
	}
	return arms
}

// reference returns the arm that the others are compared with: the first.
func reference(e *result.Experiment) string {
	if len(e.Arms) == 0 {
		return "host"
	}
	return e.Arms[0].Name
}

// the returns the reference as it stands in a sentence: "the host", "runc", "what was asked".
func the(e *result.Experiment) string {
	if r := reference(e); r != "host" {
		return armTitle(e, r)
	}
	return "the host"
}

func measureOf(e *result.Experiment, name string) result.Measure {
	for _, m := range e.Measures {
		if m.Name == name {
			return m
		}
	}
	return result.Measure{Name: name, Title: name}
}

func comparison(r *result.Row, arm, measure string) *result.Comparison {
	for i := range r.Compared {
		if c := &r.Compared[i]; c.Arm == arm && c.Measure == measure && c.Penalty != nil {
			return c
		}
	}
	return nil
}

// allPrinted returns the published figures of a measure: one for each kind of arm that was published.
func allPrinted(r *result.Row, measure string) (all []*result.Figure) {
	for i := range r.Published {
		if r.Published[i].Measure == measure {
			all = append(all, &r.Published[i])
		}
	}
	return all
}

// printedFor returns the published figure for an arm. With several arms, a figure belongs only to the arm of its own kind:
// a figure of SR-IOV says nothing about a bridge.
func printedFor(e *result.Experiment, r *result.Row, arm, measure string) *result.Figure {
	for _, f := range allPrinted(r, measure) {
		if f.Arm == arm || f.Arm == "" && len(compared(e)) < 2 {
			return f
		}
	}
	return nil
}

// value returns the median of an arm in one measure; nil if it has none.
func value(r *result.Row, arm, measure string) *float64 {
	for _, a := range r.Arms {
		if v, ok := a.Values[measure]; ok && a.Arm == arm {
			return &v
		}
	}
	return nil
}

// verdict returns the verdict corrected for multiple comparisons, or the plain one if there is no correction.
func verdict(c *result.Comparison) stat.Verdict {
	switch {
	case c == nil || c.Penalty == nil:
		return stat.Undecided
	case c.Corrected != "":
		return c.Corrected
	}
	return c.Penalty.Verdict
}

func severalCompared(e *result.Experiment) bool {
	n := 0
	for _, m := range e.Measures {
		if m.Compared {
			n++
		}
	}
	return n > 1
}

// worseBy returns the direction of a positive penalty: "more" or "less".
func worseBy(m result.Measure) string {
	if m.LessIsBetter {
		return "more"
	}
	return "less"
}

// inUnit returns the factor from the unit of m to the unit that people read, and that unit.
func inUnit(m result.Measure) (factor float64, unit string) {
	switch m.Unit {
	case "B/s":
		return 1e-6, "MB/s"
	case "bit/s":
		return 1e-6, "Mbit/s"
	case "us":
		return 1, "µs"
	}
	return 1, m.Unit
}

// named returns the title of a measure with its unit.
func named(m result.Measure) string {
	_, unit := inUnit(m)
	title := m.Title
	if title == "" {
		title = m.Name
	}
	if unit == "" {
		return title
	}
	return title + ", " + unit
}

func isTime(m result.Measure) bool { return slices.Contains([]string{"us", "ms", "s"}, m.Unit) }

// disturbed returns how many counted trials an experiment has (all), and how many of them are marked as disturbed.
func disturbed(e *result.Experiment) (marked, all int) {
	for _, t := range e.Trials {
		if t.Round > 0 {
			all++
			if len(t.Disturbed) > 0 {
				marked++
			}
		}
	}
	return marked, all
}
