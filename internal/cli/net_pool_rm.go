package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) netPoolRmCmd() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "remove pools that no node uses", Args: cobra.MinimumNArgs(1),
		Example: "  berth net pool rm lab",
		RunE: func(_ *cobra.Command, names []string) error {
			b := a.open()
			return each(names, func(name string) error {
				if err := a.macPools().Remove(name, b.Specs); err != nil {
					return err
				}
				fmt.Fprintf(a.Out, "%s removed\n", name)
				return nil
			})
		},
	}
}
