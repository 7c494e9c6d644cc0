package commands

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/bench/bed"
)

func (a App) listCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "the experiments that bench run knows",
		Long:    "List the experiments that berth bench run knows: what each measures, and the\npublished measurement that it repeats.",
		Example: "  berth bench list\n  berth bench list --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all := bed.Catalogue()
			if *a.JSON {
				return a.PrintJSON(all)
			}
			for _, e := range all {
				fmt.Fprintf(a.Out, "%-13s %s: %s\n", e.Name, e.Title, e.Setting)
				if e.Source != "" {
					fmt.Fprintf(a.Out, "%-13s after %s\n", "", e.Source)
				}
			}
			fmt.Fprintln(a.Out, "beside these: berth bench isolation for rates, weights and classes (--part),")
			fmt.Fprintln(a.Out, "and berth bench disk and net, each one table with a length of its own")
			return nil
		},
	}
	return a.JSONFlag(c)
}
