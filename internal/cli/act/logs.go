package act

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/node"
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
			b := a.Attended(cmd.Context())
			err = w.Write(cmd.Context(), b, out, names)
			a.notStarted(b, names)
			return err
		},
	}
	c.Flags().BoolVarP(&w.Follow, "follow", "f", false, "go on as they grow, until the nodes end")
	c.Flags().IntVarP(&w.Lines, "lines", "n", w.Lines, "only the last `N` lines of each")
	c.Flags().BoolVarP(&w.Timestamps, "timestamps", "t", false, "begin each line with its time")
	timeFlags(c, &since, &until)
	return c
}

// notStarted says why nodes that are being restarted write nothing: their restarts fail.
func (a App) notStarted(b *node.Berth, names []string) {
	boot, err := b.Host.BootID()
	if err != nil {
		return // no node can be told to be restarting
	}
	for _, name := range names {
		s := b.Status(name, boot)
		show.NotStarted(a.Err, text.Columns(a.Err), &s)
	}
}
