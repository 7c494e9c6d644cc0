package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/sys/text"
)

func (a *app) showCmd() *cobra.Command {
	var specOnly bool
	c := &cobra.Command{
		Use: "show NAME", Short: "show a node: its identity, and its limits as the kernel has them", Args: cobra.ExactArgs(1),
		Long: `Show a node: state, process, user, ids, network, mounts, and each limit as
asked, as read back from the kernel (with the kernel's own rounding), and by
what it is honoured.`,
		ValidArgsFunction: a.nodeNames(1),
		Example:           "  berth show wn-001\n  berth show wn-001 --spec    the spec as it is now\n  berth show wn-001 --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			b := a.attended(cmd.Context())
			if specOnly {
				yaml, err := b.SpecText(args[0])
				if err != nil {
					return err
				}
				_, err = a.Out.Write(yaml)
				return err
			}
			d, err := b.Show(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(d)
			}
			return show.Detail(a.Out, text.Columns(a.Out), d)
		},
	}
	c.Flags().BoolVar(&specOnly, "spec", false, "print the spec as it is now, with what was set live")
	return a.jsonFlag(c)
}
