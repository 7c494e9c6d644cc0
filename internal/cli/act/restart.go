package act

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/node"
	"berth/internal/sys/text"
)

// Restart returns the command berth restart.
func (a App) Restart() *cobra.Command {
	grace := node.OwnGrace
	c := &cobra.Command{
		Use: "restart NAME…", Short: "stop nodes and start them again", Args: cobra.MinimumNArgs(1),
		Long: `Stop nodes as berth stop does, and start them again as their specs say now: with
the same MACs, the same id range, and what they wrote. A node that does not run
is started. What this host would refuse to start is not stopped (exit 3). If
the command is killed in between, the node is stopped.`,
		Example:           "  berth restart wn-001\n  berth restart --grace 60s wn-001 wn-002",
		ValidArgsFunction: a.Names(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			b, err := a.ToStart()
			if err != nil {
				return err
			}
			return a.EachNode(b, names, func(name string, out io.Writer) error {
				wasUp, err := b.Restart(cmd.Context(), name, grace)
				if err == nil {
					fmt.Fprintf(out, "%s %s\n", name, text.Either(wasUp, "restarted", "started"))
				}
				return err
			})
		},
	}
	GraceFlag(c, &grace)
	return c
}

// GraceFlag adds the flag --grace. Without it grace stays node.OwnGrace.
func GraceFlag(c *cobra.Command, grace *time.Duration) {
	own := *grace
	c.Flags().DurationVar(grace, "grace", 0, "`TIME` to wait before everything is killed (default: stop.grace of the spec, else 10s)")
	*grace = own
}
