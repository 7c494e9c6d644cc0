package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/image/debian"
	"berth/internal/image/pull"
	"berth/internal/sys/text"
)

func (a *app) imagePruneCmd() *cobra.Command {
	return &cobra.Command{
		Use: "prune", Short: "remove what no image needs", Args: cobra.NoArgs,
		Long: `Remove layers that neither an image nor a node has, what pulls
and builds that were cut off have left, and copies of trusted files that are
gone. Images stay: berth image rm removes them. What is used, or being pulled or
built, stays too.`,
		Example: "  berth image prune",
		RunE: func(cmd *cobra.Command, _ []string) error {
			freed, err := pull.Sweep(a.layout().Pulls(), 0)
			err = errors.Join(err, debian.Sweep(cmd.Context(), a.layout().Builds()))
			if err == nil {
				var forgotten []string
				forgotten, err = image.Open(a.layout()).Prune(cmd.Context(), a.open().ImageUsers)
				for _, name := range forgotten {
					fmt.Fprintf(a.Out, "%s forgotten: its file is gone\n", name)
				}
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(a.Out, "%s of unfinished pulls removed\n", text.Human(freed))
			return nil
		},
	}
}
