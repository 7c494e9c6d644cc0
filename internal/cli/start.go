package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"berth/internal/node/autostart"
	"berth/internal/sys/text"
)

func (a *app) startCmd() *cobra.Command {
	auto := false
	c := &cobra.Command{
		Use: "start NAME…", Short: "start stopped nodes", Args: func(c *cobra.Command, names []string) error {
			if auto {
				return cobra.NoArgs(c, names)
			}
			return cobra.MinimumNArgs(1)(c, names)
		},
		Long: `Start stopped nodes as their specs say now: with the same MACs, the same id
range, and what they wrote. With --autostart: all nodes whose specs say so, as
at boot; one that cannot start does not keep the others from it.`,
		Example:           "  berth start wn-001\n  berth start --autostart    in the boot script of a host without systemd",
		ValidArgsFunction: a.nodeNames(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			b, err := a.openToStart()
			if err != nil {
				return err
			}
			start := b.Start
			if auto {
				start = b.Autostart
				if names, err = autostart.Nodes(b); err != nil {
					return err
				}
			}
			return a.eachNode(b, names, func(name string, out io.Writer) error {
				changed, err := start(cmd.Context(), name)
				if err == nil {
					fmt.Fprintf(out, "%s %s\n", name, text.Either(changed, "started", "runs already"))
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&auto, "autostart", false, "all nodes that start with the host")
	return c
}
