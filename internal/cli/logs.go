package cli

import (
	"github.com/spf13/cobra"
)

func (a *app) logsCmd() *cobra.Command {
	var follow bool
	lines := -1
	c := &cobra.Command{
		Use: "logs NAME", Short: "print what a node's command wrote", Args: cobra.ExactArgs(1),
		Long: `Print what a node's command wrote to its standard output and error. The
keeper reads it from a pipe, 4 MiB/s of a node at most, and keeps the newest 5
to 10 MiB.
On a terminal, what does not print is written out, so that the node cannot
command the terminal.`,
		Example:           "  berth logs wn-001\n  berth logs -f -n 20 wn-001",
		ValidArgsFunction: a.nodeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.attended(cmd.Context())
			if err != nil {
				return err
			}
			out := a.Out
			if columns(out) == 0 { // not a terminal: pass on the node's bytes unchanged
				out = raw(out)
			}
			return b.Logs(cmd.Context(), args[0], out, lines, follow)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as it grows, until the node ends")
	c.Flags().IntVarP(&lines, "lines", "n", lines, "only the last `N` lines")
	return c
}
