package act

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"berth/internal/site/audit"
	"berth/internal/sys/refuse"
)

// Audit returns the command berth audit.
func (a App) Audit() *cobra.Command {
	var w audit.Wish
	var since, until string
	c := &cobra.Command{
		Use: "audit", Short: "print what the agent of this host was asked for",
		Long: `Print what the agent of this host was asked for: when, by whom, what, on what,
and what came of it. Each act that changes something has two lines: one on the
disk before it begins, and one when it has ended. They are kept for 90 days.
--reads adds what only reads, and what was refused before it began, of which the
newest 16 to 32 MiB are kept. With --host it is the audit of that host, for its
admins alone. --json prints an object a line. Commands of root on this host need
no agent, and are not in it.`,
		Example: "  berth audit --since 24h\n  berth audit --who ann --node job-17 --reads\n  berth --host node7 audit --since 1h --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var err error
			if w.Since, err = moment("since", since); err == nil {
				w.Until, err = moment("until", until)
			}
			if err != nil {
				return err
			}
			damaged, err := audit.Tell(a.Open().Layout.Audit(), w, func(l audit.Line) error {
				if *a.JSON {
					return a.PrintLine(l)
				}
				_, err := fmt.Fprintln(a.Out, l)
				return err
			})
			if errors.Is(err, fs.ErrNotExist) {
				return &refuse.Error{Kind: refuse.NotFound, What: "no agent has answered on this host, so there is no audit", Remedy: "docs/agent.md says how hosts get one", Err: err}
			}
			if damaged > 0 {
				fmt.Fprintf(a.Err, "berth: lines that cannot be read, as after a kill or on a full disk: %d\n", damaged)
			}
			return err
		},
	}
	c.Flags().StringVar(&w.Who, "who", "", "only acts of this person, service or host: `NAME`")
	c.Flags().StringVar(&w.Node, "node", "", "only acts on this node, host or image: `NAME`")
	c.Flags().BoolVar(&w.Reads, "reads", false, "also reads, and what was refused before it began")
	_ = c.RegisterFlagCompletionFunc("node", a.Names(0)) // fails only for an unknown flag
	_ = c.RegisterFlagCompletionFunc("who", cobra.NoFileCompletions)
	timeFlags(c, &since, &until)
	return a.JSONFlag(c)
}
