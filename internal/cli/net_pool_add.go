package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) netPoolAddCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "add NAME ADDRESS|FIRST-LAST…", Short: "add addresses to a pool, which is made if need be", Args: cobra.MinimumNArgs(2),
		Example: "  berth net pool add lab 02:00:5e:10:00:01 02:00:5e:10:01:00-02:00:5e:10:01:ff",
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := a.macPools().Add(cmd.Context(), args[0], args[1:])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(p)
			}
			fmt.Fprintf(a.Out, "%s: %d addresses, %d in use\n", p.Name, p.Size, p.Used)
			return nil
		},
	})
}
