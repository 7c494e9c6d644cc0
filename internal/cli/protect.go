package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/cgroup"
	"berth/internal/node"
	"berth/internal/vnode"
)

func (a *app) protectCmd() *cobra.Command {
	var want node.Protection
	c := &cobra.Command{
		Use: "protect UNIT|PID|CGROUP", Short: "give a service that already runs on this host class storage", Args: cobra.ExactArgs(1),
		Long: `Give a service that already runs on this host class storage, where it is, so
that batch nodes give way to it. A unit of systemd gets it by its properties,
over D-Bus, and keeps it when it is started again; a cgroup of its own gets it
as it is; for any other process a cgroup is made, and the process and those that
it started are moved there. What was is written down first: berth unprotect
gives it back, and berth repair finishes what was killed half-way.

What systemd runs is protected as its unit, also when it is named by a process.
What it gets: share/doc/berth/classes.md.`,
		Example: "  berth protect xrootd@clustered.service\n  berth protect xrootd@clustered.service --disk /srv/data --engine bfq\n  berth protect 4711\n  berth protect /sys/fs/cgroup/storage --io-weight 500",
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			p, err := b.Protect(cmd.Context(), args[0], want)
			if err != nil {
				return err
			}
			for _, s := range p.Settled {
				fmt.Fprintln(a.Err, strings.TrimSpace(s.Node+" "+s.Did))
			}
			if a.json {
				return a.printJSON(p)
			}
			return printProtected(a.Out, columns(a.Out), p)
		},
	}
	fl := c.Flags()
	fl.Func("memory-low", "protect `SIZE` of its memory from reclaim (cgroup v2)", func(s string) (err error) {
		want.MemoryLow, err = vnode.ParseBytes(s)
		return err
	})
	fl.StringArrayVar(&want.Disks, "disk", nil, "a `DEVICE`, or a folder on it, that must share by weight: refused if nothing makes it; may be repeated")
	fl.Func("engine", "switch these disks to `ENGINE`, bfq, bfq-strict or iocost, as long as the service is protected", func(s string) error {
		want.Engine = vnode.Engine(s)
		return nil
	})
	fl.StringVar(&want.Model, "model", "", "what these disks can do, for engine iocost, as berth doctor --calibrate prints it: `\"rbps=N …\"`")
	fl.IntVar(&want.CPUWeight, "cpu-weight", 0, "share of CPU time beside other services, `N` of 1..10000 (default 1000; 100 is normal)")
	fl.IntVar(&want.IOWeight, "io-weight", 0, "share of every disk that shares by weight, `N` of 1..10000 (default 1000; 100 is normal)")
	return a.jsonFlag(c)
}

func (a *app) unprotectCmd() *cobra.Command {
	return &cobra.Command{
		Use: "unprotect UNIT|PID|CGROUP", Short: "give a protected service back what it had", Args: cobra.ExactArgs(1),
		Long: `Give a service that berth protect gave class storage back exactly what it had
before. Processes return to the cgroup that they came from.`,
		Example: "  berth unprotect xrootd@clustered.service",
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			return b.Unprotect(cmd.Context(), args[0])
		},
	}
}

func printProtected(out io.Writer, width int, p *node.Protected) error {
	fmt.Fprintf(out, "%s %s has class %s", p.Kind, p.Name, p.Class)
	if p.Cgroup != "" {
		fmt.Fprintf(out, ", in cgroup %s", p.Cgroup)
	}
	if len(p.PIDs) > 0 {
		fmt.Fprintf(out, ", %s", processes(len(p.PIDs)))
	}
	fmt.Fprintln(out)
	return printLimits(out, width, p.Values)
}

func processes(n int) string { return fmt.Sprintf("%d process%s", n, word(n == 1, "", "es")) }

// protectedRows adds the protected services to the list of nodes.
func protectedRows(w *tabwriter.Writer, all []node.Protected) {
	for _, p := range all {
		state, pid := "protected", "-"
		switch {
		case p.Gone:
			state = "protected, gone"
		case len(p.PIDs) > 0:
			pid = strconv.Itoa(p.PIDs[0])
			if n := len(p.PIDs) - 1; n > 0 {
				pid += "+" + strconv.Itoa(n)
			}
		}
		if slices.ContainsFunc(p.Values, func(v cgroup.Shown) bool { return strings.HasPrefix(v.Key, "disk ") && !v.Holds }) {
			state += ", engine off"
		}
		fmt.Fprintln(w, strings.Join([]string{p.Name, state, pid, ago(p.Since), "-", "-"}, "\t"))
	}
}
