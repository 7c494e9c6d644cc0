package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/sys/text"
)

func (a *app) unprotectCmd() *cobra.Command {
	return &cobra.Command{
		Use: "unprotect UNIT|PID|CGROUP", Short: "give a protected service back what it had", Args: cobra.ExactArgs(1),
		Long: `Give a service that berth protect gave class storage back exactly what it had
before. Processes return to the cgroup that they came from; where that is gone,
to the nearest one above it, which is said.`,
		Example: "  berth unprotect xrootd@clustered.service",
		RunE: func(cmd *cobra.Command, args []string) error {
			services := a.services()
			notes, err := services.Unprotect(cmd.Context(), args[0])
			for _, n := range notes {
				text.Wrap(a.Err, text.Columns(a.Err), 2, "", args[0]+": "+n)
			}
			return err
		},
	}
}
