package host

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// width is the greatest width of a line of a report, and label the column in which its text begins.
const (
	width = 80
	label = 32
)

// Text prints a report for people, at most 80 columns wide: one line for a check that is ok, else also what is wanted, why,
// and the remedy.
func Text(w io.Writer, checks []Check) error {
	var b strings.Builder
	area := ""
	for _, c := range checks {
		if c.Area != area {
			area = c.Area
			fmt.Fprintf(&b, "%s\n", area)
		}
		writeCheck(&b, c)
	}
	_, err := io.WriteString(w, b.String()+"\n"+verdict(checks))
	return err
}

// verdict returns the number of checks in each state, and whether this host can run nodes.
func verdict(checks []Check) string {
	count := map[State]int{}
	for _, c := range checks {
		count[c.State]++
	}
	text := fmt.Sprintf("%d ok, %d lacking, %d off, %d broken: ", count[OK], count[Lacks], count[Off], count[Broken])
	if missing := Missing(checks); len(missing) > 0 {
		return text + fmt.Sprintf("this host cannot run nodes (%d needed)\n", len(missing))
	}
	return text + "this host can run nodes\n"
}

func writeCheck(b *strings.Builder, c Check) {
	state := string(c.State)
	if c.Mandatory && c.State != OK {
		state += "!"
	}
	head := fmt.Sprintf("  %-8s %-20s ", state, c.Name)
	writeWrapped(b, head, c.Found)
	if c.State == OK {
		return
	}
	if c.Wanted != "" {
		writeWrapped(b, fmt.Sprintf("%*s", label, "wanted: "), c.Wanted)
	}
	writeWrapped(b, fmt.Sprintf("%*s", label, "why: "), c.Why)
	writeRemedy(b, c)
}

func writeRemedy(b *strings.Builder, c Check) {
	for line := range strings.SplitSeq(c.Remedy, "\n") {
		if line != "" {
			fmt.Fprintf(b, "    %s\n", line) // not wrapped, so that it can be pasted
		}
	}
}

// writeWrapped writes head and text, wrapped at width. Lines after the first are indented by label.
func writeWrapped(b *strings.Builder, head, text string) {
	b.WriteString(head)
	col := utf8.RuneCountInString(head)
	first := true
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case first:
		case col+1+n > width:
			fmt.Fprintf(b, "\n%*s", label, "")
			col = label
		default:
			b.WriteByte(' ')
			col++
		}
		b.WriteString(word)
		col += n
		first = false
	}
	b.WriteByte('\n')
}
