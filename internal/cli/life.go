package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/cli/act"
	"berth/internal/node"
	"berth/internal/node/autostart"
	"berth/internal/sys/text"
)

func (a *app) startCmd() *cobra.Command {
	auto := false
	c := &cobra.Command{
		Use: "start NAME…", Short: "start stopped nodes", Args: func(c *cobra.Command, names []string) error {
			if auto {
				return cobra.NoArgs(c, names)
			}
			return cobra.MinimumNArgs(1)(c, names)
		},
		Long: `Start stopped nodes as their specs say now: with the same MACs, the same id
range, and what they wrote. With --autostart: all nodes whose specs say so, as
at boot; one that cannot start does not keep the others from it.`,
		Example:           "  berth start wn-001\n  berth start --autostart    in the boot script of a host without systemd",
		ValidArgsFunction: a.nodeNames(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			b, err := a.openToStart()
			if err != nil {
				return err
			}
			start := b.Start
			if auto {
				start = b.Autostart
				if names, err = autostart.Nodes(b); err != nil {
					return err
				}
			}
			return each(names, func(name string) error {
				changed, err := start(cmd.Context(), name)
				if err == nil {
					fmt.Fprintf(a.Out, "%s %s\n", name, text.Either(changed, "started", "runs already"))
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&auto, "autostart", false, "all nodes that start with the host")
	return c
}

func (a *app) stopCmd() *cobra.Command {
	grace := node.OwnGrace
	c := &cobra.Command{
		Use: "stop NAME…", Short: "stop running nodes", Args: cobra.MinimumNArgs(1),
		Long: `Stop running nodes: process 1 gets the signal that it understands (the spec's
stop.signal, else the image's own, else SIGTERM for a command, SIGRTMIN+3 for
systemd, SIGUSR2 for busybox init, SIGPWR for sysvinit), then, after the grace
time, everything in the node is killed. A process 1 that has no handler for the
signal is killed at once: the kernel would not deliver it. Ctrl-C ends the grace
time. What the node wrote, its MACs and its id range are kept until berth rm.`,
		Example:           "  berth stop wn-001\n  berth stop --grace 60s wn-001 wn-002",
		ValidArgsFunction: a.nodeNames(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			b := a.open()
			return each(names, func(name string) error {
				changed, err := b.Stop(cmd.Context(), name, grace)
				if err == nil {
					fmt.Fprintf(a.Out, "%s %s\n", name, text.Either(changed, "stopped", "was not running"))
				}
				return err
			})
		},
	}
	act.GraceFlag(c, &grace)
	return c
}

func (a *app) rmCmd() *cobra.Command {
	force := false
	c := &cobra.Command{
		Use: "rm NAME…", Short: "remove nodes and what they wrote", Args: cobra.MinimumNArgs(1),
		Long: `Remove nodes: what they wrote, their MACs, their id ranges, their logs and
stored specs. A running one is left alone (exit 5), unless --force says to kill
it.`,
		Example:           "  berth rm wn-001\n  berth rm --force wn-001    also if it runs",
		ValidArgsFunction: a.nodeNames(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			b := a.open()
			last := false
			err := each(names, func(name string) error {
				if n, err := b.Spec(name); err == nil && n.Autostart {
					last = true
				}
				err := b.Remove(cmd.Context(), name, force)
				if err == nil {
					fmt.Fprintf(a.Out, "%s removed\n", name)
				}
				return err
			})
			if last {
				err = errors.Join(err, autostart.Settle(b))
			}
			return err
		},
	}
	c.Flags().BoolVarP(&force, "force", "f", false, "also if the node runs: it is killed")
	return c
}
