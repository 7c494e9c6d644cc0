package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// textWidth is the greatest width of a line of text.
const textWidth = 80

// plainText collects lines.
type plainText struct{ strings.Builder }

// Text writes the report for a terminal, in lines of at most 80 columns and without colour.
func (r *Report) Text(w io.Writer) error {
	var t plainText
	a := r.Answer()
	t.wrap("", a.Status)
	t.wrap("", a.Headline)
	t.wrap("", a.Noise)
	t.wrap("", a.Power)
	for _, g := range a.Groups {
		if g.Verdict == stat.Equivalent {
			continue // the tables have them
		}
		t.wrap("", fmt.Sprintf("%s: %s", g.Verdict, g.Meaning))
		for _, item := range g.Items {
			t.wrap("  - ", item)
		}
	}
	for i := range r.Study.Experiments {
		t.experiment(&r.Study.Experiments[i])
	}
	t.line("")
	for _, f := range machineFacts(r.Study) {
		t.wrap("", f.Name+": "+f.Value)
	}
	for _, n := range r.Study.Notes {
		t.wrap("- ", n)
	}
	if _, err := io.WriteString(w, printable(t.String())); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}

func (t *plainText) experiment(e *result.Experiment) {
	t.line("")
	t.wrap("", fmt.Sprintf("%s: %s", e.Name, e.Title))
	if e.Skipped != "" {
		t.wrap("  ", "not measured: "+e.Skipped)
		return
	}
	// The widest line: 14 + 8 + 8 + 20 + 6 + 6 + 11 and six spaces.
	const line = "%-14s %8s %8s %-20s %6s %6s %s"
	for _, m := range e.Measures {
		first := true
		t.beside(e, m)
		for _, l := range lines(e) {
			if l.measure.Name != m.Name {
				continue
			}
			if first {
				t.wrap("", fmt.Sprintf("%s, and %% %s than %s (95 %% interval)", named(m), worseBy(m), the(e)))
				t.line(fmt.Sprintf(line, "", fit(reference(e), 8), "arm", "%", "again", "publ.", "verdict"))
			}
			first = false
			t.row(line, l)
		}
	}
	if someChange(e) {
		t.wrap("", "After a stroke: what the row by itself is called (e: equivalent, w: worse, b: better, u: undecided).")
	}
	if s := disagree(e); s != "" {
		t.wrap("! ", s)
	}
	for _, f := range flagMeanings(e) {
		t.wrap("! ", f.Name+" ("+strings.Join(flagged(e, f.Name), ", ")+"): "+f.Value)
	}
	for _, f := range experimentFacts(e) {
		t.wrap("  ", f.Name+": "+f.Value)
	}
	for _, n := range e.Notes {
		t.wrap("- ", n)
	}
}

// mostBeside is how many arms fit beside the reference into a line of text.
const mostBeside = 3

// beside prints the medians of all arms beside each other, in an experiment with machines: whoever weighs them against containers
// wants host, container and machine in one line. Below them stand the comparisons, with intervals and verdicts.
func (t *plainText) beside(e *result.Experiment, m result.Measure) {
	arms := compared(e)
	if !slices.Contains(arms, result.VirtualMachine) || len(arms) > mostBeside {
		return
	}
	head := []string{fmt.Sprintf("%-14s %8s", "", fit(reference(e), 8))}
	for _, arm := range arms {
		head = append(head, fmt.Sprintf("%9s %8s", fit(heading(e, arm), 9), "%"))
	}
	first := true
	for i := range e.Rows {
		r := &e.Rows[i]
		h := value(r, reference(e), m.Name)
		if h == nil {
			continue
		}
		if first {
			t.wrap("", fmt.Sprintf("%s: medians side by side, and %% %s than %s", named(m), worseBy(m), the(e)))
			t.line(strings.Join(head, " "))
			first = false
		}
		name := strings.Join(strings.Fields(r.Name), " ")
		if utf8.RuneCountInString(name) > 14 {
			t.wrap("", name)
			name = ""
		}
		cells := []string{fmt.Sprintf("%-14s %8s", name, narrow(scaled(h, m).Text))}
		for _, arm := range arms {
			v := value(r, arm, m.Name)
			cells = append(cells, fmt.Sprintf("%9s %8s", narrow(scaled(v, m).Text), narrow(lost(comparison(r, arm, m.Name), h, v, m))))
		}
		t.line(strings.Join(cells, " "))
	}
}

// row prints a comparison. A name that is too long gets its own line.
func (t *plainText) row(format string, l line) {
	name := l.row.Name
	if len(compared(l.exp)) > 1 {
		name += " " + l.arm
	}
	name = strings.Join(strings.Fields(name), " ")
	if utf8.RuneCountInString(name) > 14 {
		t.wrap("", name)
		name = ""
	}
	p, again, pub := l.c.Penalty, "-", "-"
	if l.null != nil {
		again = signed(l.null.Penalty.PenaltyPct)
	}
	if l.printed != nil {
		pub = signed(l.printed.PenaltyPct)
	}
	s := signed(p.PenaltyPct)
	if p.CI95Pct != nil {
		s += " (" + signed(p.CI95Pct[0]) + ".." + signed(p.CI95Pct[1]) + ")"
	}
	v := string(verdict(l.c))
	if alone := string(p.Verdict); alone != "" && v != alone && v == string(stat.Undecided) { // a correction only takes verdicts away
		v += "/" + alone[:1]
	}
	if len(l.row.Flags) > 0 {
		v += "!"
	}
	h, a := value(l.row, reference(l.exp), l.measure.Name), value(l.row, l.arm, l.measure.Name)
	t.line(fmt.Sprintf(format, name, narrow(scaled(h, l.measure).Text), narrow(scaled(a, l.measure).Text), s, again, pub, v))
}

// narrow prints a figure in at most 8 columns.
func narrow(s string) string {
	s = strings.ReplaceAll(s, "\u202f", "")
	if len([]rune(s)) <= 8 {
		return s
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(s, "−", "-"), 64)
	if err != nil {
		return fit(s, 8)
	}
	return fmt.Sprintf("%.2g", v)
}

// fit cuts s to n columns.
func fit(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// plain replaces the typographic characters of the page by ones that every terminal has.
func plain(s string) string {
	return strings.NewReplacer("\u202f", "", "−", "-", "“", "\"", "”", "\"", "µs", "us", "±", "+-").Replace(s)
}

func (t *plainText) line(s string) {
	t.WriteString(strings.TrimRight(strings.ReplaceAll(plain(s), "\n", " "), " ") + "\n")
}

// wrap writes a paragraph with mark before its first line. It breaks a word that is too long.
func (t *plainText) wrap(mark, s string) {
	indent, col := strings.Repeat(" ", len(mark)), len(mark)
	t.WriteString(mark)
	first := true
	for word := range strings.FieldsSeq(plain(s)) {
		n := utf8.RuneCountInString(word)
		if !first && col+1+n > textWidth {
			t.WriteString("\n" + indent)
			col, first = len(indent), true
		}
		if !first {
			t.WriteString(" ")
			col++
		}
		for r := []rune(word); ; {
			room := textWidth - col
			if len(r) <= room {
				t.WriteString(string(r))
				col += len(r)
				break
			}
			t.WriteString(string(r[:room]) + "\n" + indent)
			r, col = r[room:], len(indent)
		}
		first = false
	}
	t.WriteString("\n")
}
