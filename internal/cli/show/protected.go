package show

import (
	"fmt"
	"io"

	"berth/internal/node/protect"
	"berth/internal/sys/text"
)

// Protected writes what a protected service has.
func Protected(out io.Writer, width int, p *protect.Service) error {
	fmt.Fprintf(out, "%s %s has class %s", p.Kind, p.Name, p.Class)
	if p.Cgroup != "" {
		fmt.Fprintf(out, ", in cgroup %s", p.Cgroup)
	}
	if len(p.PIDs) > 0 {
		fmt.Fprintf(out, ", %s", processes(len(p.PIDs)))
	}
	fmt.Fprintln(out)
	return Limits(out, width, p.Values)
}

func processes(n int) string { return fmt.Sprintf("%d process%s", n, text.Either(n == 1, "", "es")) }
