package act

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"berth/internal/node"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// Kill returns the command berth kill.
func (a App) Kill() *cobra.Command {
	name := "KILL"
	c := &cobra.Command{
		Use: "kill NAME…", Short: "send a signal to process 1 of nodes", Args: cobra.MinimumNArgs(1),
		Long: `Send a signal to process 1 of running nodes: SIGKILL, which ends the node, or
the one that --signal names. A process 1 without a handler for a signal does
not get it from the kernel, and that is said (exit 1). A paused node ends by
SIGKILL at once, and gets any other signal when it goes on. How the node ended
decides about its restart policy, as always; berth stop ends it for good.`,
		Example:           "  berth kill wn-001\n  berth kill -s HUP web\n  berth exec wn-001 -- kill -TERM -1    to all of its other processes",
		ValidArgsFunction: a.Names(0, node.Running, node.Paused),
		RunE: func(cmd *cobra.Command, names []string) error {
			sig, err := proc.ParseSignal(name)
			if err != nil {
				return refuse.Invalidf("--signal: %w", err)
			}
			b := a.Open()
			return a.EachNode(b, names, func(name string, out io.Writer) error {
				later, err := b.Kill(cmd.Context(), name, sig)
				if err == nil {
					fmt.Fprintf(out, "%s %s %s\n", name, text.Either(later, "is paused, and gets when it goes on", "got"), proc.SignalText(sig))
				}
				return err
			})
		},
	}
	c.Flags().StringVarP(&name, "signal", "s", name, "`SIGNAL` by name or number: TERM, SIGHUP, 9, RTMIN+3")
	_ = c.RegisterFlagCompletionFunc("signal", signals) // fails only for an unknown flag
	return c
}

// signals offers the signals that are sent by hand.
func signals(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "WINCH"}, cobra.ShellCompDirectiveNoFileComp
}
