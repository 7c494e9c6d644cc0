package host

import (
	"fmt"
	"io"
	"strings"
)

// Brief prints the checks that are not ok: why each matters, and the remedy. Broken and mandatory ones it prints in full,
// as Text does.
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
