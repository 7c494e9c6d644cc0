package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func (a *app) netPoolLsCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "ls", Short: "list the pools and how much of each is in use",
		Example: "  berth net pool ls\n  berth net pool ls --json",
		RunE: func(*cobra.Command, []string) error {
			all, err := a.macPools().List()
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tSIZE\tUSED\tADDRESSES")
			for _, p := range all {
				fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", p.Name, p.Size, p.Used, strings.Join(p.Ranges, " "))
			}
			err = w.Flush()
			for _, p := range all {
				if p.Trouble != "" {
					fmt.Fprintln(a.Out, p.Trouble)
				}
			}
			return err
		},
	})
}
