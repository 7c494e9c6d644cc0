package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"berth/internal/cli/act"
	"berth/internal/node"
	"berth/internal/sys/text"
)

func (a *app) stopCmd() *cobra.Command {
	grace := node.OwnGrace
	c := &cobra.Command{
		Use: "stop NAME…", Short: "stop running nodes", Args: cobra.MinimumNArgs(1),
		Long: `Stop running nodes: process 1 gets the signal that it understands (the spec's
stop.signal, else the image's own, else SIGTERM for a command, SIGRTMIN+3 for
systemd, SIGUSR2 for busybox init, SIGINT for sysvinit), then, after the grace
time, everything in the node is killed. A process 1 that has no handler for the
signal is killed at once: the kernel would not deliver it. Ctrl-C ends the grace
time. What the node wrote, its MACs and its id range are kept until berth rm.
Several nodes are stopped at once, but clients of file servers and other nodes
in the order of their names on the command line.`,
		Example:           "  berth stop wn-001\n  berth stop --grace 60s wn-001 wn-002",
		ValidArgsFunction: a.nodeNames(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			b := a.open()
			return a.eachNode(b, names, func(name string, out io.Writer) error {
				changed, err := b.Stop(cmd.Context(), name, grace)
				if err == nil {
					fmt.Fprintf(out, "%s %s\n", name, text.Either(changed, "stopped", "was not running"))
				}
				return err
			})
		},
	}
	act.GraceFlag(c, &grace)
	return c
}
