package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/network/sriov"
)

func (a *app) vfRestoreCmd() *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use: "restore", Short: "make the virtual functions again that vf enable had made (called at boot)", Hidden: true,
		Long: `Make the virtual functions again that berth vf enable had made, where they are
gone: after a boot, or a reload of the adapter's driver. The unit that enable
writes calls it; so do berth repair and the keeper.`,
		Example: "  berth vf restore --wait 30s",
		RunE: func(cmd *cobra.Command, _ []string) error {
			h := sriov.OnHost(a.layout())
			did, err := h.RestoreVFs(cmd.Context(), wait)
			for _, d := range did {
				fmt.Fprintln(a.Out, d)
			}
			return err
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "how long to wait for an adapter whose driver is not loaded yet")
	return c
}
