package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"

	"berth/internal/bench/result"
)

// columns are the columns of the CSV, in order; docs/report.md describes them. Add new ones at the end.
var columns = [...]string{
	"experiment", "row", "value", "arm", "measure", "unit", "less_is_better", "host_median", "arm_median", "pairs", "penalty_pct",
	"ci95_low", "ci95_high", "ci90_low", "ci90_high", "margin_pct", "verdict", "verdict_by_itself", "could_decide_pct",
	"p_differs", "p_equivalent", "published_host", "published_arm", "published_penalty_pct", "flags", "partial", "emulated",
	"totals_penalty_pct", "totals_ci90_low", "totals_ci90_high",
}

// CSV writes a line for each row, arm (except the reference) and measure. Fields that do not apply are empty.
func (r *Report) CSV(w io.Writer) error {
	var b strings.Builder
	out := csv.NewWriter(&b)
	lines := [][]string{columns[:]}
	for i := range r.Study.Experiments {
		e := &r.Study.Experiments[i]
		for j := range e.Rows {
			for _, arm := range append(compared(e), nullArm) {
				for _, m := range e.Measures {
					if l := r.csvLine(e, &e.Rows[j], arm, m); l != nil {
						lines = append(lines, l)
					}
				}
			}
		}
	}
	if err := out.WriteAll(lines); err != nil {
		return fmt.Errorf("make the table: %w", err)
	}
	if _, err := io.WriteString(w, printable(b.String())); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// csvLine returns the fields of a line; nil if the arm has neither a value nor a comparison in the measure.
func (r *Report) csvLine(e *result.Experiment, row *result.Row, arm string, m result.Measure) []string {
	c, h, v := comparison(row, arm, m.Name), value(row, reference(e), m.Name), value(row, arm, m.Name)
	if c == nil && v == nil {
		return nil
	}
	var flags []string
	for _, f := range row.Flags {
		flags = append(flags, string(f))
	}
	l := []string{e.Name, row.Name, number(row.Value), arm, m.Name, m.Unit, strconv.FormatBool(m.LessIsBetter), number(h), number(v)}
	l = append(l, csvPenalty(c, r.Study.MarginPct)...)
	f := printedFor(e, row, arm, m.Name)
	if f == nil || arm == nullArm {
		l = append(l, "", "", "")
	} else {
		l = append(l, nonzero(f.Host), nonzero(f.Node), number(&f.PenaltyPct))
	}
	l = append(l, strings.Join(flags, " "), strconv.FormatBool(r.Study.Partial), cmp.Or(r.Study.Emulated, emulated(e, arm)))
	together := make([]string, 3)
	if c != nil && c.Penalty.Totals != nil {
		together[0] = number(&c.Penalty.Totals.PenaltyPct)
		if i := c.Penalty.Totals.CI90Pct; i != nil {
			together[1], together[2] = number(&i[0]), number(&i[1])
		}
	}
	return append(l, together...)
}

// csvPenalty returns the twelve fields of a comparison.
func csvPenalty(c *result.Comparison, marginPct float64) []string {
	l := make([]string, 12)
	if c == nil {
		return l
	}
	p := c.Penalty
	l[0], l[1] = strconv.Itoa(p.Pairs), number(&p.PenaltyPct)
	for i, iv := range []*[2]float64{p.CI95Pct, p.CI90Pct} {
		if iv != nil {
			l[2+2*i], l[3+2*i] = number(&iv[0]), number(&iv[1])
		}
	}
	l[6], l[7], l[8], l[9] = number(&marginPct), string(verdict(c)), string(p.Verdict), number(p.Could)
	if c.Corrected != "" {
		l[10], l[11] = number(&c.P), number(&c.PEquiv)
	}
	return l
}

// number prints a value in full; "" for nil.
func number(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'g', -1, 64)
}

func nonzero(v float64) string {
	if v == 0 {
		return ""
	}
	return number(&v)
}
