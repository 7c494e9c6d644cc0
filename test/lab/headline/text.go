package headline

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Text writes the report for a person, in lines of at most 80 columns.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	p := r.Plan
	fmt.Fprintf(&b, "Measured in an emulated machine (TCG, no KVM): compare arms, not machines.\n\n")
	fmt.Fprintf(&b, "XRootD on a disk of %.0f MB/s and %d requests a second; a client asks for %d\n", float64(r.DiskBytes)/1e6, r.DiskRequests, p.Reads)
	fmt.Fprintf(&b, "random ranges of 64 KiB in %d s, whatever the server does. Two nodes burn CPU,\n", p.Seconds)
	fmt.Fprintf(&b, "one reads (64 KiB), one writes (256 KiB), 16 requests in flight each, direct.\n")
	if len(r.Probes) > 0 {
		fmt.Fprintf(&b, "io.max: %.1f MB/s of reads, %.1f of writes: what protect's nodes moved in %d\ntrials before the rounds.\n", r.Cap.Read/1e6, r.Cap.Written/1e6, len(r.Probes))
	}
	fmt.Fprintf(&b, "%d of %d rounds, arms in random order, seed %d, %s, %d session%s%s.\n\n", r.rounds(), p.Rounds, p.Seed,
		r.Started.Format("2006-01-02"), r.Sessions, map[bool]string{true: "s"}[r.Sessions != 1], map[bool]string{true: "; PARTIAL, interrupted"}[r.Partial])
	r.table(&b)
	r.mains(&b)
	r.adds(&b)
	r.compared(&b)
	r.others(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// Short returns the text for docs/isolation.md: the arms and the main questions.
func (r *Report) Short() string {
	var b strings.Builder
	r.table(&b)
	r.mains(&b)
	r.adds(&b)
	return b.String()
}

// Brief returns the text for README, in Markdown: what the service waits and what the nodes keep, in three arms.
func (r *Report) Brief() string {
	var b strings.Builder
	names := []string{Alone, Unprotected, Protected}
	cells := func(of func(Result) string) string {
		var text []string
		for _, name := range names {
			cell := "–"
			if i := slices.IndexFunc(r.Arms, func(a Result) bool { return a.Arm == name }); i >= 0 {
				cell = of(r.Arms[i])
			}
			text = append(text, cell)
		}
		return strings.Join(text, " | ")
	}
	against := func(b, what string) string { // Protected against another arm
		i := slices.IndexFunc(r.Compared, func(c Ratio) bool { return c.A == Protected && c.B == b && c.What == what })
		if i < 0 || r.Compared[i].CI == nil {
			return "not measured"
		}
		c := r.Compared[i]
		return fmt.Sprintf("%s times (%s to %s)", times(c.Ratio), times(c.CI[0]), times(c.CI[1]))
	}
	verdict := "not measured"
	if i := slices.IndexFunc(r.Compared, func(c Ratio) bool { return c.A == Protected && c.B == Alone && c.What == p99 }); i >= 0 {
		verdict = r.Compared[i].Verdict
	}
	wait := func(v float64, ci *[2]float64) string { return strings.ReplaceAll(spread(v, ci), "..", " to ") }
	fmt.Fprintf(&b, "| a storage service waits, ms | alone | beside batch nodes | the same, `berth protect` |\n|---|---|---|---|\n")
	fmt.Fprintf(&b, "| p50 of its reads (95 %%) | %s |\n", cells(func(a Result) string { return wait(a.P50, a.P50CI) }))
	fmt.Fprintf(&b, "| p99 | %s |\n", cells(func(a Result) string { return wait(a.P99, a.P99CI) }))
	fmt.Fprintf(&b, "| what the nodes read and write | – | all | %s |\n\n", against(Unprotected, work))
	fmt.Fprintf(&b, "XRootD on a disk of %.0f MB/s and %d requests a second, in an emulated machine: `make headline`,\n", float64(r.DiskBytes)/1e6, r.DiskRequests)
	fmt.Fprintf(&b, "[data](docs/evidence/headline.json.gz). Whether the protected p99 is that of the service alone is %s: %s.\n", verdict, against(Alone, p99))
	return b.String()
}

// table writes each arm's description and results.
func (r *Report) table(b *strings.Builder) {
	known := map[string]Arm{}
	for _, a := range arms("") {
		known[a.Name] = a
	}
	fmt.Fprintf(b, "arms\n")
	for _, a := range r.Arms {
		fmt.Fprintf(b, "%-16s%s\n", a.Arm, known[a.Arm].Says)
	}
	const line = "%-16s%-18s%-20s%6s%8s%9s\n"
	for _, half := range []bool{false, true} {
		head := false
		for _, a := range r.Arms {
			if known[a.Arm].Half != half {
				continue
			}
			switch {
			case head:
			case half:
				fmt.Fprintf(b, "\nthe service idle half of the time      nodes, MB/s: while it is idle    in all\n")
				fmt.Fprintf(b, line, "", "p50 ms (95 %)", "p99 ms (95 %)", "", "", "")
			default:
				fmt.Fprintln(b)
				fmt.Fprintf(b, line, "", "p50 ms (95 %)", "p99 ms (95 %)", "CPUs", "read", "written")
				fmt.Fprintf(b, line, "the service", "", "", "nodes", "MB/s", "MB/s")
			}
			head = true
			cells := []string{fmt.Sprintf("%.2f", a.Work.CPU), mega(a.Work.Read), mega(a.Work.Written)}
			if half {
				cells = []string{"", mega(a.Idle.disk()), mega(a.Work.disk())}
			}
			fmt.Fprintf(b, line, a.Arm, spread(a.P50, a.P50CI), spread(a.P99, a.P99CI), cells[0], cells[1], cells[2])
		}
	}
}

// mains writes the main questions that were measured.
func (r *Report) mains(b *strings.Builder) {
	r.ratios(b, fmt.Sprintf("The main questions; their verdicts hold together (intervals of %.4g %%)", 100-5./mains),
		func(c Ratio) bool { return c.Main }, func(c Ratio) string { return ", " + c.What })
}

// adds writes what protect adds over two lines of shell, whatever the result.
func (r *Report) adds(b *strings.Builder) {
	title := "What protect adds over two lines of shell (io.max at its rate, cpu.weight=1)"
	for _, line := range []struct{ a, b, what, says string }{
		{Protected, IOMaxCPU, p50, "the service works: its p50 is"},
		{Protected, IOMaxCPU, p99, "its p99 is"},
		{Protected, IOMaxCPU, work, "the nodes move"},
		{HalfProtected, HalfIOMaxCPU, p50, "it is idle at times: its p50 is"},
		{HalfProtected, HalfIOMaxCPU, p99, "its p99 is"},
		{HalfProtected, HalfIOMaxCPU, left, "while it is idle the nodes move"},
	} {
		i := slices.IndexFunc(r.Compared, func(c Ratio) bool { return c.A == line.a && c.B == line.b && c.What == line.what })
		if i < 0 {
			continue
		}
		if title != "" {
			fmt.Fprintf(b, "\n%s\n", title)
		}
		title = ""
		c := r.Compared[i]
		interval := ""
		if c.CI != nil {
			interval = fmt.Sprintf(" (%s..%s)", times(c.CI[0]), times(c.CI[1]))
		}
		fmt.Fprintf(b, "%34s  %s%s times: %s\n", line.says, times(c.Ratio), interval, c.Verdict)
	}
}

// compared writes the other ratios.
func (r *Report) compared(b *strings.Builder) {
	none := func(Ratio) string { return "" }
	r.ratios(b, fmt.Sprintf("p50, ratios (95 %%); equivalent: within %d %%", latencyMargin), func(c Ratio) bool { return !c.Main && c.What == p50 }, none)
	r.ratios(b, "p99", func(c Ratio) bool { return !c.Main && c.What == p99 }, none)
	r.ratios(b, fmt.Sprintf("bytes that the nodes moved; equivalent: within %d %%", workMargin), func(c Ratio) bool { return !c.Main && c.What == work }, none)
	r.ratios(b, "the same, while the service is idle", func(c Ratio) bool { return !c.Main && c.What == left }, none)
}

// ratios writes the ratios of one kind below a title.
func (r *Report) ratios(b *strings.Builder, title string, kind func(Ratio) bool, more func(Ratio) string) {
	for _, c := range r.Compared {
		if !kind(c) {
			continue
		}
		if title != "" {
			fmt.Fprintf(b, "\n%s\n", title)
		}
		title = ""
		fmt.Fprintf(b, "%-44s%s\n", c.A+" / "+c.B+more(c), c.text())
	}
}

func (r *Report) others(b *strings.Builder) {
	if len(r.Crossed) > 0 {
		fmt.Fprintf(b, "\nCPU x disk: what the CPU part does beside the disk part, to what it does alone\n")
		for _, c := range r.Crossed {
			fmt.Fprintf(b, "%-44s%s\n", c.What, c.text())
		}
	}
	if len(r.Removed) > 0 {
		fmt.Fprintf(b, "\nof the p99 that unprotected nodes add, %% removed (95 %%)\n")
		for _, x := range r.Removed {
			text := "not shown that they add any"
			if x.Protected.Removed != nil {
				text = spread(x.Protected.Removed.Pct, x.Protected.Removed.CI95)
			}
			fmt.Fprintf(b, "%-44s%s\n", x.Arm, text)
		}
	}
	if len(r.CarryOver) > 0 {
		fmt.Fprintf(b, "\ncarry-over: trials after arms that fill the disk, to trials after others\n")
		for _, c := range r.CarryOver {
			fmt.Fprintf(b, "%-44s%.2f, p = %.2g (%d, %d trials)\n", c.What, c.Ratio, c.P, c.After, c.Others)
		}
	}
}

// text formats a ratio with its interval and verdict.
func (c *Ratio) text() string {
	if c.CI == nil {
		return fmt.Sprintf("%s (too few rounds)", times(c.Ratio))
	}
	return fmt.Sprintf("%-22s %s", fmt.Sprintf("%s (%s..%s)", times(c.Ratio), times(c.CI[0]), times(c.CI[1])), c.Verdict)
}

func times(v float64) string {
	switch {
	case v < 0.1:
		return fmt.Sprintf("%.3f", v)
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	}
	return Digits(v)
}

func mega(v float64) string { return fmt.Sprintf("%.1f", v/1e6) }

func spread(v float64, ci *[2]float64) string {
	if ci == nil {
		return Digits(v)
	}
	return fmt.Sprintf("%s (%s..%s)", Digits(v), Digits(ci[0]), Digits(ci[1]))
}

// Digits formats milliseconds.
func Digits(v float64) string {
	if math.Abs(v) < 99.95 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
