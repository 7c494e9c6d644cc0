package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/node/protect"
	"berth/internal/spec/vnode"
	"berth/internal/sys/step"
	"berth/internal/sys/text"
)

func (a *app) protectCmd() *cobra.Command {
	var want protect.Options
	var dryRun bool
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
		Example: "  berth protect xrootd@clustered.service\n  berth protect xrootd@clustered.service --disk /srv/data --engine bfq\n  berth protect 4711 --dry-run\n  berth protect /sys/fs/cgroup/storage --io-weight 500",
		RunE: func(cmd *cobra.Command, args []string) error {
			services := a.services()
			if dryRun {
				steps, err := services.Plan(cmd.Context(), args[0], want)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(step.Lines(steps))
				}
				show.Steps(a.Out, text.Columns(a.Out), step.Lines(steps))
				return nil
			}
			p, err := services.Protect(cmd.Context(), args[0], want)
			if err != nil {
				return err
			}
			for _, s := range p.Settled {
				fmt.Fprintln(a.Err, strings.TrimSpace(s.Name+" "+s.Did))
			}
			if a.json {
				return a.printJSON(p)
			}
			return show.Protected(a.Out, text.Columns(a.Out), p)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&dryRun, "dry-run", false, "show the steps, and change nothing")
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
