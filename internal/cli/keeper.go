package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func (a *app) keeperCmd() *cobra.Command {
	var upgrade bool
	given := -1
	c := &cobra.Command{
		Use: "keeper", Short: "watch the nodes of this host (started by the other commands)", Hidden: true,
		Long: "Started by the first node and gone with the last: it brings links home, writes exit\nstatus and restarts nodes. No need to call it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := a.open()
			if upgrade {
				runs, err := b.UpgradeKeeper(cmd.Context())
				if err == nil && !runs {
					fmt.Fprintln(a.Err, "no keeper runs")
				}
				return err
			}
			var ready *os.File // only the command that starts a keeper waits for it
			if given < 0 {
				ready = os.NewFile(3, "ready")
			}
			return b.Keep(cmd.Context(), ready, given)
		},
	}
	c.Flags().BoolVar(&upgrade, "upgrade", false, "make the keeper that runs become this program: same process, same nodes")
	c.Flags().IntVar(&given, "given", -1, "descriptor of what the keeper's older program left")
	_ = c.Flags().MarkHidden("given")
	return c
}
