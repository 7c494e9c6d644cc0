package act

import (
	"github.com/spf13/cobra"

	"berth/internal/node"
)

// Unpause returns the command berth unpause.
func (a App) Unpause() *cobra.Command {
	return &cobra.Command{
		Use: "unpause NAME…", Short: "let paused nodes go on", Args: cobra.MinimumNArgs(1),
		Long:              "Let paused nodes go on where they were held.",
		Example:           "  berth unpause wn-001 wn-002",
		ValidArgsFunction: a.Names(0, node.Paused),
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.change(cmd.Context(), names, (*node.Berth).Unpause, "goes on", "was not paused")
		},
	}
}
