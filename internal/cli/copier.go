package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/storage/copier"
)

// copierCmd is the process that cp and export start in a node.
func (a *app) copierCmd() *cobra.Command {
	return &cobra.Command{
		Use: copier.Command + " JOB PATH TOP", Short: "copy files in a node (started by cp and export)", Hidden: true, Args: cobra.ExactArgs(3),
		Long: "Started by berth cp and berth export. No need to call it.",
		RunE: func(_ *cobra.Command, args []string) error {
			a.code = copier.Serve(args)
			return nil
		},
	}
}
