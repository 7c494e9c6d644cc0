package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/image/pull"
)

func (a *app) imageRmCmd() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "remove images that no node uses", Args: cobra.MinimumNArgs(1),
		Long:              "Remove images. One that a node uses stays, running or not (exit 5). What pulls\nthat were cut off left goes too, once it is a week old; berth image prune\nremoves it at once.\n\nOf file:FILE the store's copy goes, and FILE stays: it is yours.",
		Example:           "  berth image rm worker\n  berth image rm file:/srv/images/worker.erofs",
		ValidArgsFunction: a.removableNames,
		RunE: func(cmd *cobra.Command, names []string) error {
			if _, err := pull.Sweep(a.layout().Pulls(), pull.Stale); err != nil {
				return err
			}
			return each(names, func(name string) error {
				if err := image.Open(a.layout()).Remove(cmd.Context(), name, a.open().ImageUsers); err != nil {
					return err
				}
				fmt.Fprintf(a.Out, "%s removed\n", name)
				return nil
			})
		},
	}
}
