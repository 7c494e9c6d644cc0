package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"berth/internal/node/autostart"
)

func (a *app) rmCmd() *cobra.Command {
	force := false
	c := &cobra.Command{
		Use: "rm NAME…", Short: "remove nodes and what they wrote", Args: cobra.MinimumNArgs(1),
		Long: `Remove nodes: what they wrote, their MACs, their id ranges, their logs and
stored specs. A running one is left alone (exit 5), unless --force says to kill
it.`,
		Example:           "  berth rm wn-001\n  berth rm --force wn-001    also if it runs",
		ValidArgsFunction: a.nodeNames(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			b := a.open()
			starts := slices.ContainsFunc(names, func(name string) bool {
				n, err := b.Spec(name)
				return err == nil && n.Autostart
			})
			err := a.eachNode(b, names, func(name string, out io.Writer) error {
				err := b.Remove(cmd.Context(), name, force)
				if err == nil {
					fmt.Fprintf(out, "%s removed\n", name)
				}
				return err
			})
			if starts { // it may have been the last that starts with the host
				err = errors.Join(err, autostart.Settle(b))
			}
			return err
		},
	}
	c.Flags().BoolVarP(&force, "force", "f", false, "also if the node runs: it is killed")
	return c
}
