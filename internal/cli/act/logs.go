package act

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/node/events"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// Logs returns the command berth logs.
func (a App) Logs() *cobra.Command {
	w := show.Logs{Lines: -1}
	var since, until string
	c := &cobra.Command{
		Use: "logs NAME…", Short: "print what the commands of nodes wrote", Args: cobra.MinimumNArgs(1),
		Long: `Print what a node's command wrote to its standard output and error. The
keeper reads it from a pipe, 4 MiB/s of a node at most, and keeps the newest 5
to 10 MiB. The lines of several nodes are put in order of time, each behind the
name of its node.
A line's time is when the keeper took its first byte from the pipe: later than
the write by a few milliseconds, or by as long as the writer was held back. What
a berth without times wrote has none, and is older than any --since.
On a terminal, what does not print is written out, so that the node cannot
command the terminal.`,
		Example:           "  berth logs wn-001\n  berth logs -f -n 20 wn-001\n  berth logs --timestamps --since 10m wn-001 wn-002",
		ValidArgsFunction: a.Names(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			var err error
			if w.Since, err = moment("since", since); err == nil {
				w.Until, err = moment("until", until)
			}
			if err != nil {
				return err
			}
			out := a.Out
			if text.Columns(out) == 0 { // not a terminal: pass on the node's bytes unchanged
				out = text.Raw(out)
			}
			return w.Write(cmd.Context(), a.Attended(cmd.Context()), out, names)
		},
	}
	c.Flags().BoolVarP(&w.Follow, "follow", "f", false, "go on as they grow, until the nodes end")
	c.Flags().IntVarP(&w.Lines, "lines", "n", w.Lines, "only the last `N` lines of each")
	c.Flags().BoolVarP(&w.Timestamps, "timestamps", "t", false, "begin each line with its time")
	timeFlags(c, &since, &until)
	return c
}

func timeFlags(c *cobra.Command, since, until *string) {
	c.Flags().StringVar(since, "since", "", "from `TIME` on: 10m (ago), 15:04, \"2006-01-02 15:04\"")
	c.Flags().StringVar(until, "until", "", "up to `TIME`")
}

// moment reads the value of a flag; the zero time for none.
func moment(flag, value string) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	t, err := text.When(value, time.Now())
	if err != nil {
		return t, refuse.Invalidf("--%s: %w", flag, err)
	}
	return t, nil
}

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
