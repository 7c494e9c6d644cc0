package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) startCmd() *cobra.Command {
	return &cobra.Command{
		Use: "start NAME…", Short: "start stopped nodes", Args: cobra.MinimumNArgs(1),
		Long: `Start stopped nodes as their specs say now: with the same MACs, the same id
range, and what they wrote.`,
		Example:           "  berth start wn-001",
		ValidArgsFunction: a.nodeNames(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			return each(names, func(name string) error {
				changed, err := b.Start(cmd.Context(), name)
				if err == nil {
					fmt.Fprintf(a.Out, "%s %s\n", name, word(changed, "started", "runs already"))
				}
				return err
			})
		},
	}
}

func (a *app) stopCmd() *cobra.Command {
	grace := 10 * time.Second
	c := &cobra.Command{
		Use: "stop NAME…", Short: "stop running nodes", Args: cobra.MinimumNArgs(1),
		Long: `Stop running nodes: process 1 gets the signal that it understands (SIGTERM for
a command, SIGRTMIN+3 for systemd, SIGUSR2 for busybox init, SIGPWR for
sysvinit, or the image's own), then, after the grace time, everything in the
node is killed. A process 1 that has no handler for the signal is killed at
once: the kernel would not deliver it. Ctrl-C ends the grace time. What the
node wrote, its MACs and its id range are kept until berth rm.`,
		Example:           "  berth stop wn-001\n  berth stop --grace 60s wn-001 wn-002",
		ValidArgsFunction: a.nodeNames(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			return each(names, func(name string) error {
				changed, err := b.Stop(cmd.Context(), name, grace)
				if err == nil {
					fmt.Fprintf(a.Out, "%s %s\n", name, word(changed, "stopped", "was not running"))
				}
				return err
			})
		},
	}
	c.Flags().DurationVar(&grace, "grace", grace, "`TIME` to wait before everything is killed")
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
			b, err := a.open()
			if err != nil {
				return err
			}
			return each(names, func(name string) error {
				err := b.Remove(cmd.Context(), name, force)
				if err == nil {
					fmt.Fprintf(a.Out, "%s removed\n", name)
				}
				return err
			})
		},
	}
	c.Flags().BoolVarP(&force, "force", "f", false, "also if the node runs: it is killed")
	return c
}

func word(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}
