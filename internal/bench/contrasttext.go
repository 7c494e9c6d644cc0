package bench

import (
	"fmt"
	"io"
	"strings"
)

// Text writes the contrast for a person: no line is wider than 80 columns, no colour.
func (c *Contrast) Text(w io.Writer) error {
	var b strings.Builder
	if by := c.emulation(); by != "" {
		wrap(&b, "", "EMULATED ("+by+"): these speeds are not those of real hardware.")
	}
	fmt.Fprintln(&b, "Two runs side by side: how much worse B is than A")
	for _, s := range []struct {
		letter string
		side   Side
	}{{"A", c.A}, {"B", c.B}} {
		wrap(&b, s.letter+" ", fmt.Sprintf("%s: %s, %d sessions, Linux %s, %s, %d cores", s.side.Name,
			s.side.Started.Format("2006-01-02 15:04"), s.side.Sessions, s.side.Machine.Kernel, orDash(s.side.Machine.CPU), s.side.Machine.Cores))
	}
	for _, d := range c.Differ {
		wrap(&b, "- ", d)
	}
	for _, e := range c.Experiments {
		fmt.Fprintf(&b, "\n%s: %s\n", e.Name, e.Title)
		fmt.Fprintf(&b, "%-26s %8s %8s  %-22s %s\n", "", "A", "B", "B worse by, % (95 %)", "verdict")
		row := ""
		for _, r := range e.Rows {
			if r.Row != row {
				row = r.Row
				fmt.Fprintln(&b, row)
			}
			fmt.Fprintf(&b, "%-26s %8s %8s  %-22s %s\n", "  "+r.what(), r.number(r.A), r.number(r.B),
				withInterval(&Comparison{PenaltyPct: r.ChangePct, CI95Pct: r.CI95Pct}), r.Verdict)
		}
	}
	fmt.Fprintln(&b)
	wrap(&b, "", fmt.Sprintf("The margin is %s %%. Sessions were not made in turn: the intervals are those of the sessions' own spread "+
		"(Welch's t test of their medians). `lost` is what an arm loses against the host in the same run.", short(c.MarginPct)))
	for _, n := range c.Notes {
		wrap(&b, "- ", n)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the comparison: %w", err)
	}
	return nil
}

// emulation says which of the runs was emulated, and by what; "" if none was.
func (c *Contrast) emulation() string {
	var by []string
	if c.A.Emulated != "" {
		by = append(by, "A: "+c.A.Emulated)
	}
	if c.B.Emulated != "" {
		by = append(by, "B: "+c.B.Emulated)
	}
	return strings.Join(by, "; ")
}

// what names the number of a line in at most 25 columns.
func (r ContrastRow) what() string {
	if r.Unit == "%" {
		return r.Arm + " lost, " + r.Measure
	}
	return r.Arm + " " + r.Measure
}

func (r ContrastRow) number(v float64) string {
	switch {
	case r.Unit == "%":
		return signed(v) + " %"
	case v >= 1e9:
		return short(v/1e9) + " G"
	case v >= 1e6:
		return short(v/1e6) + " M"
	case v >= 1e4:
		return short(v/1e3) + " k"
	}
	return short(v)
}
