package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/node/autostart"
)

func (a *app) repairCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "repair", Short: "undo what killed commands left",
		Long: `Undo what killed commands left: a creation that was interrupted is rolled back,
a removal is finished, a set ends at the old or the new value, a node whose
process 1 ended unseen is cleaned up, and the keeper is started again. It waits
for commands that are at work.`,
		Example: "  berth repair",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := a.open()
			did, err := b.Repair(cmd.Context())
			err = errors.Join(err, autostart.Settle(b))
			if a.json {
				if perr := a.printJSON(did); perr != nil {
					return perr
				}
				return err
			}
			for _, d := range did {
				fmt.Fprintln(a.Out, strings.TrimSpace(d.Node+" "+d.Did))
			}
			if len(did) == 0 && err == nil {
				fmt.Fprintln(a.Out, "nothing to repair")
			}
			return err
		},
	}
	return a.jsonFlag(c)
}
