package pools

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (c Commands) rm() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "remove pools that no node uses", Args: cobra.MinimumNArgs(1),
		Long: `Remove pools that no node uses and that hold no volume (else exit 5). The volume
group or folder stays as it is, but for the empty folder that Berth made there.`,
		Example: "  berth pool rm vg0",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			names, _ := c.pools().Names() // nothing to offer without an answer
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			return c.Each(names, func(name string) error {
				nodes, err := c.Open().Specs()
				if err == nil {
					err = c.pools().Remove(cmd.Context(), name, nodes)
				}
				if err == nil {
					fmt.Fprintf(c.Out, "%s removed\n", name)
				}
				return err
			})
		},
	}
}
