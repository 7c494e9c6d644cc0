package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// Table is a table of the page. The first cell of a line is its heading.
type Table struct {
	Caption string
	Head    [][]Cell
	Lines   []TableLine
}

// TableLine is a line of a table.
type TableLine struct {
	Class string
	Cells []Cell
}

// Cell is one field.
type Cell struct {
	Text  string
	Class string // "text" is left-aligned, "v-worse" a verdict
	Span  int    // columns, if more than one
}

// verdictTable returns a table with a line for each comparison.
func verdictTable(e *result.Experiment, marginPct float64) Table {
	t := Table{Caption: fmt.Sprintf("Verdicts at a margin of %s %%. Positive = worse than %s.", percent(marginPct), the(e))}
	arms, source := len(compared(e)) > 1, hasPrinted(e)
	head := []Cell{{Text: "row", Class: "text"}}
	if arms {
		head = append(head, Cell{Text: "arm", Class: "text"})
	}
	head = append(head, Cell{Text: "verdict", Class: "text"}, Cell{Text: "penalty, %"}, Cell{Text: "95 % interval"}, Cell{Text: "pairs"})
	if again(e) {
		head = append(head, Cell{Text: reference(e) + " again, % (95 %)"})
	}
	if hasTotals(e) {
		head = append(head, Cell{Text: "of all together, % (90 %)"})
	}
	head = append(head, Cell{Text: "could decide, %"})
	if source {
		head = append(head, Cell{Text: "published, %"})
	}
	if someChange(e) || slices.ContainsFunc(lines(e), func(l line) bool { return len(l.row.Flags) > 0 }) {
		head = append(head, Cell{Text: "read with care", Class: "text"})
	}
	t.Head = [][]Cell{head}
	for _, m := range e.Measures {
		first := true
		for _, l := range lines(e) {
			if l.measure.Name != m.Name {
				continue
			}
			if first && severalCompared(e) {
				t.Lines = append(t.Lines, TableLine{Class: "part", Cells: []Cell{{
					Text: fmt.Sprintf("%s, %% %s", m.Title, worseBy(m)), Class: "text", Span: len(t.Head[0]),
				}}})
			}
			first = false
			t.Lines = append(t.Lines, TableLine{Cells: verdictCells(l, arms, source)[:len(head)]})
		}
	}
	return t
}

// verdictCells returns the cells of a comparison. The last one says why it is to be read with care.
func verdictCells(l line, arms, source bool) []Cell {
	p := l.c.Penalty
	cells := []Cell{{Text: l.row.Name, Class: "text"}}
	if arms {
		cells = append(cells, Cell{Text: armTitle(l.exp, l.arm), Class: "text"})
	}
	v := verdict(l.c)
	text := symbol(v) + " " + string(v)
	cells = append(cells, Cell{Text: text, Class: "text v-" + slug(string(v))}, Cell{Text: signed(p.PenaltyPct)}, Cell{Text: interval(p)}, Cell{Text: fmt.Sprint(p.Pairs)})
	if again(l.exp) {
		text := "-"
		if l.null != nil {
			text = signed(l.null.Penalty.PenaltyPct) + " (" + interval(l.null.Penalty) + ")"
		}
		cells = append(cells, Cell{Text: text})
	}
	if hasTotals(l.exp) {
		cells = append(cells, Cell{Text: totals(p)})
	}
	cells = append(cells, Cell{Text: couldOf(p)})
	if source {
		s := "-"
		if l.printed != nil {
			s = signed(l.printed.PenaltyPct)
		}
		cells = append(cells, Cell{Text: s})
	}
	var flags []string
	if v != p.Verdict {
		flags = append(flags, "by itself "+string(p.Verdict))
	}
	for _, f := range l.row.Flags {
		flags = append(flags, string(f))
	}
	return append(cells, Cell{Text: strings.Join(flags, ", "), Class: "text"})
}

// someChange reports whether the correction for multiple comparisons changes a verdict.
func someChange(e *result.Experiment) bool {
	return slices.ContainsFunc(lines(e), func(l line) bool { return verdict(l.c) != l.c.Penalty.Verdict })
}

// hasTotals reports whether a comparison has the second estimate. What is judged by runs has none.
func hasTotals(e *result.Experiment) bool {
	return slices.ContainsFunc(lines(e), func(l line) bool { return l.c.Penalty.Totals != nil })
}

func totals(p *stat.Comparison) string {
	switch {
	case p.Totals == nil:
		return "-"
	case p.Totals.CI90Pct == nil:
		return signed(p.Totals.PenaltyPct) + " (no ends)"
	}
	return fmt.Sprintf("%s (%s to %s)", signed(p.Totals.PenaltyPct), signed(p.Totals.CI90Pct[0]), signed(p.Totals.CI90Pct[1]))
}

// disagree names the comparisons whose total over all trials lies outside the 95 % interval of the typical pair.
func disagree(e *result.Experiment) string {
	var rows []string
	for _, l := range lines(e) {
		p := l.c.Penalty
		if l.main && p.Totals != nil && p.CI95Pct != nil && (p.Totals.PenaltyPct < p.CI95Pct[0] || p.Totals.PenaltyPct > p.CI95Pct[1]) {
			rows = append(rows, fmt.Sprintf("%s %s: %s %%", l.row.Name, l.arm, signed(p.Totals.PenaltyPct)))
		}
	}
	if rows == nil {
		return ""
	}
	return "all trials together lose something else than a pair as a rule, outside its 95 % interval: a few trials of one arm decide the sum (" + strings.Join(rows, "; ") + ")"
}

// again reports whether there is a null arm beside other arms.
func again(e *result.Experiment) bool {
	return hasNode(e) && slices.ContainsFunc(e.Arms, func(a result.Arm) bool { return a.Name == nullArm })
}

// symbol returns the symbol of a verdict, shown in addition to its colour.
func symbol(v stat.Verdict) string {
	switch v {
	case stat.Equivalent:
		return "="
	case stat.Worse:
		return "▼"
	case stat.Better:
		return "▲"
	}
	return "?"
}

func hasPrinted(e *result.Experiment) bool {
	return slices.ContainsFunc(e.Rows, func(r result.Row) bool { return len(r.Published) > 0 })
}

// figureTables returns the medians of an experiment: rates and the first time in one table, the other times in a second,
// so that each fits the width of a page. With several arms it is one long table.
func figureTables(e *result.Experiment) []Table {
	if len(compared(e)) > 1 {
		return []Table{longTable(e)}
	}
	var first, times []result.Measure
	for _, m := range e.Measures {
		switch {
		case !isTime(m) || hasFigure(e, m) || !slices.ContainsFunc(first, isTime):
			first = append(first, m)
		default:
			times = append(times, m)
		}
	}
	all := []Table{figureTable(e, first)}
	if len(times) > 0 {
		all = append(all, figureTable(e, times))
	}
	return all
}

func hasFigure(e *result.Experiment, m result.Measure) bool {
	return slices.ContainsFunc(e.Rows, func(r result.Row) bool { return allPrinted(&r, m.Name) != nil })
}

// figureTable returns the medians in the shape of the published tables: for each measure the host, the node and the
// difference, and below each row its published figures, if any.
func figureTable(e *result.Experiment, measures []result.Measure) Table {
	ref, arm := reference(e), nullArm
	if hasNode(e) {
		arm = compared(e)[0]
	}
	t := Table{Caption: "Medians of the trials; % = how much worse, estimated from pairs where an interval stands above, else the ratio of the medians."}
	top, sub := []Cell{{Text: "row", Class: "text"}}, []Cell{{}}
	for _, m := range measures {
		top = append(top, Cell{Text: named(m), Span: 3})
		sub = append(sub, Cell{Text: ref}, Cell{Text: shortArm(arm)}, Cell{Text: "%"})
	}
	t.Head = [][]Cell{top, sub}
	for i := range e.Rows {
		r := &e.Rows[i]
		ours, theirs, what := []Cell{{Text: r.Name, Class: "text"}}, []Cell{{Class: "text"}}, ""
		for _, m := range measures {
			h, v := value(r, ref, m.Name), value(r, arm, m.Name)
			ours = append(ours, scaled(h, m), scaled(v, m), Cell{Text: lost(comparison(r, arm, m.Name), h, v, m), Class: "pct"})
			all := allPrinted(r, m.Name)
			if len(all) == 0 {
				theirs = append(theirs, Cell{}, Cell{}, Cell{})
				continue
			}
			f := all[0]
			theirs = append(theirs, scaledOrNone(f.Host, m), scaledOrNone(f.Node, m), Cell{Text: signed(f.PenaltyPct), Class: "pct"})
			what = f.What
		}
		t.Lines = append(t.Lines, TableLine{Cells: ours})
		if what != "" {
			theirs[0].Text = what
			t.Lines = append(t.Lines, TableLine{Class: "published", Cells: theirs})
		}
	}
	return t
}

// longTable returns a table with a line for each row and measure, and all arms beside each other.
func longTable(e *result.Experiment) Table {
	ref := reference(e)
	t := Table{Caption: "Medians of the trials; % = how much worse."}
	head := []Cell{{Text: "row", Class: "text"}, {Text: "measure", Class: "text"}, {Text: ref}}
	for _, arm := range compared(e) {
		head = append(head, Cell{Text: heading(e, arm)}, Cell{Text: "%"})
	}
	t.Head = [][]Cell{head}
	for i := range e.Rows {
		r := &e.Rows[i]
		for _, m := range e.Measures {
			h := value(r, ref, m.Name)
			cells := []Cell{{Text: r.Name, Class: "text"}, {Text: named(m), Class: "text"}, scaled(h, m)}
			any := h != nil
			for _, arm := range compared(e) {
				v := value(r, arm, m.Name)
				any = any || v != nil
				cells = append(cells, scaled(v, m), Cell{Text: lost(comparison(r, arm, m.Name), h, v, m), Class: "pct"})
			}
			if any {
				t.Lines = append(t.Lines, TableLine{Cells: cells})
			}
			for _, f := range allPrinted(r, m.Name) {
				cells := []Cell{{Text: f.What, Class: "text"}, {Text: named(m), Class: "text"}, scaledOrNone(f.Host, m)}
				for _, arm := range compared(e) {
					if f.Arm != arm {
						cells = append(cells, Cell{}, Cell{})
						continue
					}
					cells = append(cells, scaledOrNone(f.Node, m), Cell{Text: signed(f.PenaltyPct), Class: "pct"})
				}
				if !slices.Contains(compared(e), f.Arm) { // no column for its arm: say it in words
					cells[0].Text += fmt.Sprintf(": %s there, %s %%", scaledOrNone(f.Node, m).Text, signed(f.PenaltyPct))
				}
				t.Lines = append(t.Lines, TableLine{Class: "published", Cells: cells})
			}
		}
	}
	return t
}

// shortArm returns the heading of an arm's column.
func shortArm(arm string) string {
	if arm == nullArm {
		return "again"
	}
	return arm
}

// heading returns the heading of an arm's column where there are several. Beside a machine, a node is called what it is.
func heading(e *result.Experiment, arm string) string {
	if arm == result.Node && slices.Contains(compared(e), result.VirtualMachine) {
		return "container"
	}
	return shortArm(arm)
}

func scaled(v *float64, m result.Measure) Cell {
	if v == nil {
		return Cell{Text: "-"}
	}
	factor, _ := inUnit(m)
	return Cell{Text: figure(*v * factor)}
}

// scaledOrNone is scaled for published figures: 0 is not known, since some publish only a penalty.
func scaledOrNone(v float64, m result.Measure) Cell {
	if v == 0 {
		return Cell{Text: "-"}
	}
	return scaled(&v, m)
}

// lost returns the penalty: the estimate, or the ratio of the medians if the measure was not compared.
func lost(c *result.Comparison, host, arm *float64, m result.Measure) string {
	switch {
	case c != nil:
		return signed(c.Penalty.PenaltyPct)
	case host == nil || arm == nil || *host == 0:
		return "-"
	case m.LessIsBetter:
		return signed(100 * (*arm - *host) / *host)
	}
	return signed(100 * (*host - *arm) / *host)
}

// overview returns a table with a line for each experiment.
func overview(s *result.Study) Table {
	t := Table{Caption: "By experiment"}
	t.Head = [][]Cell{{
		{Text: "experiment", Class: "text"},
		{Text: "= equivalent"},
		{Text: "▼ worse"},
		{Text: "▲ better"},
		{Text: "? undecided"},
		{Text: "largest penalty, %"},
		{Text: "noise floor, %"},
		{Text: "pairs a row"},
	}}
	for i := range s.Experiments {
		e := &s.Experiments[i]
		if e.Skipped != "" {
			t.Lines = append(t.Lines, TableLine{Cells: []Cell{
				{Text: e.Name, Class: "text"}, {Text: "not measured: " + e.Skipped, Class: "text", Span: 7},
			}})
			continue
		}
		if len(e.Rows) > 0 && len(lines(e)) == 0 {
			t.Lines = append(t.Lines, TableLine{Cells: []Cell{
				{Text: e.Name, Class: "text"}, {Text: "figures without comparisons: see there", Class: "text", Span: 7},
			}})
			continue
		}
		n, most, floor := map[stat.Verdict]int{}, math.Inf(-1), "-"
		var noise float64
		for _, l := range lines(e) {
			if !l.main {
				continue
			}
			n[verdict(l.c)]++
			most = max(most, l.c.Penalty.PenaltyPct)
			if l.null != nil {
				noise = max(noise, math.Abs(l.null.Penalty.PenaltyPct))
				floor = figure(noise)
			}
		}
		t.Lines = append(t.Lines, TableLine{Cells: []Cell{
			{Text: e.Name, Class: "text"},
			{Text: fmt.Sprint(n[stat.Equivalent])},
			{Text: fmt.Sprint(n[stat.Worse])},
			{Text: fmt.Sprint(n[stat.Better])},
			{Text: fmt.Sprint(n[stat.Undecided])},
			{Text: signed(most)},
			{Text: floor},
			{Text: fmt.Sprint(e.Design.Pairs)},
		}})
	}
	return t
}
