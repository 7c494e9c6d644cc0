package bench

import (
	"fmt"
	"io"
	"strings"
)

// What the published measurement of OS-level virtualization for block I/O (VNodes, PDSW 2015) says, on another machine.
const (
	publishedCost     = "Published (VNodes 2015, one disk): less than 10 % lost with 1 to 8 nodes."
	publishedThrottle = "Published (VNodes 2015): the upper limit holds; concurrent processes take some of it."
	publishedWeights  = "Published (VNodes 2015): less than 8 % lost in total."
)

// Text writes the report for a person: no line is wider than 80 columns, no colour.
func (r *Isolation) Text(w io.Writer) error {
	var b strings.Builder
	r.textHead(&b)
	r.textCost(&b)
	r.textThrottle(&b)
	r.textWeights(&b)
	r.textLatency(&b)
	for _, part := range []Part{CostPart, LatencyPart} {
		if s := CarryNote(r.Carry[part]); s != "" {
			wrap(&b, "", "("+string(part)+") "+s)
		}
	}
	for _, l := range r.LeftOut {
		wrap(&b, "! ", fmt.Sprintf("Part %s is left out: %s", l.Part, l.text()))
	}
	if failed := r.failed(); failed > 0 {
		wrap(&b, "! ", fmt.Sprintf("%d of %d trials failed and are left out; --json has their messages", failed, len(r.Trials)))
	}
	wrap(&b, "", fmt.Sprintf("Intervals: 95 %%. The margin is %s %%: `equivalent` says that a difference is shown to be smaller, "+
		"`worse` and `better` that there is one and not one shown to be smaller, `undecided` that this run cannot tell.", short(r.MarginPct)))
	for _, n := range r.Notes {
		wrap(&b, "- ", n)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}

func (l LeftOut) text() string {
	if l.Remedy == "" || strings.Contains(l.Why, l.Remedy) {
		return l.Why
	}
	return l.Why + " (" + l.Remedy + ")"
}

// failed counts the trials that measured nothing.
func (r *Isolation) failed() int {
	n := 0
	for _, t := range r.Trials {
		count(&n, t.Error != "")
	}
	return n
}

func (r *Isolation) textHead(b *strings.Builder) {
	m := r.Machine
	emulatedFirst(b, m)
	title := "Isolation: what nodes get, and what they leave to others"
	if r.Partial {
		title += " — PARTIAL, interrupted"
	}
	fmt.Fprintln(b, title)
	where := m.Device
	if m.Scheduler != "" {
		where += " (" + m.Scheduler + ")"
	}
	if m.FileSystem != "" {
		where += ", " + m.FileSystem + " on " + m.Mount
	}
	if r.Engine != "" {
		where += "; switched to " + string(r.Engine) + " for weights and latency"
	}
	wrap(b, "", fmt.Sprintf("%s; a %s of %d MiB; Linux %s, %d cores, %s; direct I/O, %d ms a trial after %d, %d rounds planned, seed %d",
		where, r.Target.Kind, r.Target.Size>>20, m.Kernel, m.Cores, r.Fio, r.RunMillis, r.Warm, r.Rounds, r.Seed))
	fmt.Fprintln(b)
}

func (r *Isolation) textCost(b *strings.Builder) {
	if len(r.Cost) == 0 {
		return
	}
	const line = "%-14s %9s %9s %-20s %-11s %s\n"
	fmt.Fprintf(b, line, "(a) cost", "host MB/s", "node MB/s", "% lost in nodes", "host twice", "verdict")
	for _, c := range r.Cost {
		fmt.Fprintf(b, line, c.Name, short(c.Host/1e6), short(c.Node/1e6), withInterval(c.Penalty), center(c.NullComp), verdictOf(c.Penalty))
	}
	wrap(b, "", "Random reads of whole objects, a process a node, each with one request at a time; \"x4\": four. "+publishedCost)
	fmt.Fprintln(b)
}

func center(c *Comparison) string {
	if c == nil {
		return "-"
	}
	return signed(c.PenaltyPct)
}

func verdictOf(c *Comparison) Verdict {
	if c == nil {
		return Undecided
	}
	return c.Verdict
}

func (r *Isolation) textThrottle(b *strings.Builder) {
	if len(r.Throttle) == 0 {
		return
	}
	const line = "%-14s %10s %-26s %11s  %s\n"
	fmt.Fprintf(b, line, "(b) throttle", "got MB/s", "achieved / asked, %", "others MB/s", "verdict")
	for _, t := range r.Throttle {
		fmt.Fprintf(b, line, t.Name, short(t.Achieved/1e6), ofAsked(t.Short), short(t.Others/1e6), verdictOf(t.Short))
	}
	wrap(b, "", "Reads of 64 KiB, or of objects of the size in the name; \"+3\": beside three nodes without a limit. "+publishedThrottle)
	fmt.Fprintln(b)
}

// ofAsked prints what was achieved in percent of what was asked.
func ofAsked(c *Comparison) string {
	switch {
	case c == nil:
		return "-"
	case c.CI95Pct == nil:
		return fmt.Sprintf("%.1f (few rounds)", 100-c.PenaltyPct)
	}
	return fmt.Sprintf("%.1f (%.1f..%.1f)", 100-c.PenaltyPct, 100-c.CI95Pct[1], 100-c.CI95Pct[0])
}

func (r *Isolation) textWeights(b *strings.Builder) {
	if len(r.Weights) == 0 {
		return
	}
	const line = "%-17s %8s %-21s %-10s %s\n"
	fmt.Fprintf(b, line, "(c) weights", "MB/s", "shares got, %", "within 5", "% lost in total")
	for _, w := range r.Weights {
		var shares []string
		for _, s := range w.Shares {
			shares = append(shares, fmt.Sprintf("%.1f", s.Got))
		}
		holds, loss := "-", "-"
		if w.Loss != nil {
			holds, loss = map[Verdict]string{Equivalent: "yes", Worse: "no", Undecided: "undecided"}[w.Holds], withInterval(w.Loss)
		}
		fmt.Fprintf(b, line, w.Name, short(w.Total/1e6), strings.Join(shares, ":"), holds, loss)
	}
	wrap(b, "", "Reads of 64 KiB, or of objects of the size in the name, so many in flight as q says; lost: against one node alone at that depth. \"within 5\": whether each "+
		"share is shown to lie within 5 points of what was asked. At depth 1 a weight does not bite (docs/weights.md). "+publishedWeights)
	fmt.Fprintln(b)
}

func (r *Isolation) textLatency(b *strings.Builder) {
	if r.Latency == nil {
		return
	}
	const line = "%-13s %8s %8s %-21s %8s %11s\n"
	fmt.Fprintf(b, line, "(d) latency", "p50 ms", "p99 ms", "p99 longer, %", "reads/s", "writes MB/s")
	for _, a := range r.Latency.Arms {
		longer := "-"
		if a.Longer != nil {
			longer = withInterval(a.Longer)
		}
		fmt.Fprintf(b, line, a.Arm, short(a.P50/1e3), short(a.P99/1e3), longer, short(a.Reads), short(a.Written/1e6))
	}
	wrap(b, "", "A reader of 16 KiB, one request at a time, beside three writers of 256 KiB, 16 in flight each. classes: the reader "+
		"is of class storage, the writers of class batch. rates: they have write rates too, together a quarter of what they wrote unprotected.")
	for _, note := range r.Latency.worth() {
		wrap(b, "", note)
	}
	fmt.Fprintln(b)
}

// worth says of each protected arm what protection does to the p99.
func (l *LatencyRow) worth() []string {
	var all []string
	for _, a := range l.Arms {
		if a.Worth != nil {
			all = append(all, a.Arm+": the p99 is "+a.Worth.Text("writers")+".")
		}
	}
	return all
}

// Text says it as the rest of a sentence whose subject is what was waited.
func (p *Protected) Text(neighbours string) string {
	text := p.Shorter.text() + " shorter than unprotected"
	if p.Removed == nil {
		return text + "; what " + neighbours + " add to it was not shown, so no part of that is told"
	}
	return text + "; of what unprotected " + neighbours + " add to it, " + p.Removed.text() + " is gone"
}

func (p Percent) text() string {
	if p.CI95 == nil {
		return fmt.Sprintf("%.0f %% (few rounds)", p.Pct)
	}
	return fmt.Sprintf("%.0f %% (95 %%: %.0f to %.0f)", p.Pct, p.CI95[0], p.CI95[1])
}
