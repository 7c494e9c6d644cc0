package act

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/node/events"
)

// Events returns the command berth events.
func (a App) Events() *cobra.Command {
	var since, until string
	stream := true
	c := &cobra.Command{
		Use: "events [NAME…]", Short: "print what happens to nodes",
		Long: `Print what happens to nodes, of all or of those named: created, started, healthy
or unhealthy by its health check, paused, unpaused, oom (told at its end: the
kernel killed in it for lack of memory), ended with its exit code, removed. It
goes on until Ctrl-C, or until --until; --stream=false prints what is known and
ends. Without --since only new events are printed, unless --stream=false.
Each event is written once, by the command or the keeper that did it, or, if
that was killed, by the next command on this node or berth repair. The newest 1
to 2 MiB are kept, beyond reboots. --json prints an object a line.`,
		Example: "  berth events\n  berth events --since 1h --stream=false --json\n  berth events job-1 job-2",
		Args:    cobra.ArbitraryArgs, ValidArgsFunction: a.Names(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			from, err := moment("since", since)
			if err != nil {
				return err
			}
			to, err := moment("until", until)
			if err != nil {
				return err
			}
			w := events.Wish{Nodes: names, Since: from, Until: to, Past: since != "" || !stream, Stream: stream}
			return a.Open().Events().Tell(cmd.Context(), w, func(e events.Event) error {
				if *a.JSON {
					return a.PrintLine(e)
				}
				_, err := fmt.Fprintln(a.Out, e)
				return err
			})
		},
	}
	c.Flags().BoolVar(&stream, "stream", stream, "go on with what happens")
	timeFlags(c, &since, &until)
	return a.JSONFlag(c)
}
