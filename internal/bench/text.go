package bench

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// Text writes the report for a person: no line is wider than 80 columns, no colour.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	r.textHead(&b)
	r.textArms(&b)
	r.textPenalties(&b)
	r.textNotes(&b)
	_, err := io.WriteString(w, b.String())
	if err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}

func (r *Report) hasNode() bool {
	for _, row := range r.Rows {
		if row.Node != nil {
			return true
		}
	}
	return false
}

func (r *Report) textHead(b *strings.Builder) {
	m := r.Machine
	emulatedFirst(b, m)
	title := "Disk: node against host"
	if !r.hasNode() {
		title = "Disk: host against itself"
	}
	if r.Partial {
		title += " — PARTIAL, the run was interrupted"
	}
	fmt.Fprintln(b, title)
	where := m.Device
	if m.Scheduler != "" {
		where += " (" + m.Scheduler + ")"
	}
	if m.FileSystem != "" {
		where += ", " + m.FileSystem + " on " + m.Mount
	}
	wrap(b, "", fmt.Sprintf("%s; a %s of %d MiB; Linux %s, %d cores, %s; direct I/O, %d ms a trial, %d pairs a row planned, seed %d",
		where, r.Target.Kind, r.Target.Size>>20, m.Kernel, m.Cores, r.Fio, r.RunMillis, r.Pairs, r.Seed))
	fmt.Fprintln(b)
}

func (r *Report) textArms(b *strings.Builder) {
	fmt.Fprintf(b, "%-16s %-5s %10s %10s %12s %12s\n", "medians", "arm", "IOPS", "MB/s", "mean lat us", "p99 lat us")
	for _, row := range r.Rows {
		name := row.Name
		for _, a := range []struct {
			name string
			m    *Median
		}{{hostArm, row.Host}, {nodeArm, row.Node}, {nullArm, row.Null}} {
			if a.m == nil || (a.name == nullArm && row.Node != nil) {
				continue // with a node, the null arm is the host twice: its penalty says it all
			}
			fmt.Fprintf(b, "%-16s %-5s %10.0f %10s %12s %12s\n", name, a.name, a.m.IOPS,
				short(a.m.Bandwidth/1e6), short(a.m.LatMean), short(a.m.LatP99))
			name = ""
		}
	}
	fmt.Fprintln(b)
}

// The widest line: 14 + 20 + 20 + 5 + 6 + 10 and five spaces.
const penaltyLine = "%-14s %-20s %-20s %5s %6s %s\n"

func (r *Report) textPenalties(b *strings.Builder) {
	fmt.Fprintf(b, penaltyLine, "% of IOPS lost", "node (95 %)", "host twice (95 %)", "could", "LXC'15", "verdict")
	for _, row := range r.Rows {
		c, null := row.Penalty, row.NullComp
		if !r.hasNode() {
			c = null
		}
		could, verdict, pub := "-", Undecided, "-"
		if c != nil {
			verdict = c.Verdict
			if c.Could != nil {
				could = short(*c.Could)
			}
		}
		if row.Published != nil {
			pub = fmt.Sprintf("%+.1f", row.Published.PenaltyPct)
		}
		fmt.Fprintf(b, penaltyLine, row.Name, withInterval(row.Penalty), withInterval(null), could, pub, verdict)
	}
	fmt.Fprintln(b)
}

func (r *Report) textNotes(b *strings.Builder) {
	wrap(b, "", fmt.Sprintf("The margin is %s %%: `equivalent` says that a difference is shown to be smaller (two one-sided tests at 5 %%: "+
		"the 90 %% interval lies inside, that of the pairs and that of all trials together), `worse` and `better` "+
		"that there is a difference and not one shown to be smaller, `undecided` that this run cannot tell. "+
		"`could` is the smallest margin that this run could have decided, in %%. LXC'15: a container in the published "+
		"measurement, on another machine (512 threads for reads).", short(r.MarginPct)))
	if s := r.noiseFloor(); s != "" {
		wrap(b, "", s)
	}
	if s := correctionNote(r.lines()); s != "" {
		wrap(b, "", s)
	}
	if s := totalsNote(r.lines()); s != "" {
		wrap(b, "! ", s)
	}
	if s := CarryNote(r.Carry); s != "" {
		wrap(b, "", s)
	}
	for _, row := range r.Rows {
		for _, f := range row.Flags {
			wrap(b, "! ", row.Name+": "+f.sentence(row.Jobs, r.Machine.Cores))
		}
	}
	for _, n := range r.Notes {
		wrap(b, "- ", n)
	}
}

// lines are what the table judges.
func (r *Report) lines() []line {
	var all []line
	for _, row := range r.Rows {
		c := row.Penalty
		if !r.hasNode() {
			c = row.NullComp
		}
		all = append(all, line{row.Name, c})
	}
	return all
}

// noiseFloor says how much the host differs from itself.
func (r *Report) noiseFloor() string {
	var worst float64
	called, n := 0, 0
	for _, row := range r.Rows {
		if c := row.NullComp; c != nil {
			n++
			worst = max(worst, math.Abs(c.PenaltyPct))
			if c.Verdict == Worse || c.Verdict == Better {
				called++
			}
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("Noise floor: the host against itself differs by up to %s %%; %d of %d such rows were called worse or better.",
		short(worst), called, n)
}

func (f Flag) sentence(jobs, cores int) string {
	switch f {
	case SchedulerBound:
		return fmt.Sprintf("%s: %d threads on %d cores: the host itself waits for CPUs more than for the disk", f, jobs, cores)
	case TrialError:
		return string(f) + ": a trial failed and is left out; --json has its message"
	case Disturbed:
		return string(f) + ": more than a tenth of the trials lie far from their median: something else used the disk or the CPUs"
	case ArmsDiffer:
		return string(f) + ": the host was called different from itself: do not trust this row"
	}
	return string(f)
}

// withInterval prints a penalty in at most 20 columns: "+47.9 (+45.1..+50.2)".
func withInterval(c *Comparison) string {
	switch {
	case c == nil:
		return "-"
	case c.CI95Pct == nil:
		return signed(c.PenaltyPct) + " (few pairs)"
	}
	return fmt.Sprintf("%s (%s..%s)", signed(c.PenaltyPct), signed(c.CI95Pct[0]), signed(c.CI95Pct[1]))
}

// signed prints a percentage in at most 5 columns.
func signed(v float64) string {
	switch {
	case math.Abs(v) < 99.95:
		return fmt.Sprintf("%+.1f", v)
	case v < -999:
		return "<-999"
	}
	return fmt.Sprintf("%+.0f", v)
}

// short prints a positive number with the decimals that matter: three digits, all of those before the point.
func short(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// wrap prints a paragraph in lines of at most 80 columns.
func wrap(b *strings.Builder, mark, text string) {
	const width = 80
	col, line := 0, mark
	indent := strings.Repeat(" ", len(mark))
	for word := range strings.FieldsSeq(text) {
		n := len([]rune(word))
		if col > 0 && col+1+n > width {
			b.WriteString("\n")
			col, line = 0, indent
		}
		if col == 0 {
			b.WriteString(line)
			col = len(line)
		} else {
			b.WriteString(" ")
			col++
		}
		b.WriteString(word)
		col += n
	}
	b.WriteString("\n")
}
