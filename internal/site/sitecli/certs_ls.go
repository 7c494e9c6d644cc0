package sitecli

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/site/certs"
)

func (a *app) certsLs() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "ls", Short: "list the certificates that were issued",
		Long:    "List the certificates that the authority on this host issued and that still\nlast; with --all also those that are over or revoked. What ended a month ago is\nforgotten.",
		Example: "  berth certs ls\n  berth certs ls --all --json",
		RunE: func(*cobra.Command, []string) error {
			s, err := a.signer()
			if err != nil {
				return err
			}
			issued, err := s.List()
			if err != nil {
				return err
			}
			now, shown := time.Now(), []certs.Issued{}
			for _, i := range issued {
				if all || i.Live(now) {
					shown = append(shown, i)
				}
			}
			if a.json {
				return a.printJSON(shown)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tROLE\tUNTIL\tSTATE\tSERIAL")
			for _, i := range shown {
				state := "valid"
				switch {
				case !i.Revoked.IsZero():
					state = "revoked"
				case !i.Live(now):
					state = "over"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", i.Name, i.Role, day(i.Until), state, i.Serial)
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "also those that are over or revoked")
	return a.jsonFlag(c)
}
