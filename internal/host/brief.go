package host

import (
	"fmt"
	"io"
	"strings"
)

// Brief prints of a report what is not fine: why that matters and the remedy. What is broken, or missing without which no
// node runs, is printed as Text does, with what was found and what is wanted.
func Brief(w io.Writer, checks []Check) error {
	var b strings.Builder
	for _, c := range checks {
		switch {
		case c.State == OK:
		case c.Mandatory, c.State == Broken:
			writeCheck(&b, c)
		default:
			writeWrapped(&b, fmt.Sprintf("  %-8s %-20s ", c.State, c.Name), c.Why)
			writeRemedy(&b, c)
		}
	}
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	b.WriteString(verdict(checks))
	b.WriteString("berth doctor --all tells what was found, also of what is fine\n")
	_, err := io.WriteString(w, b.String())
	return err
}
