package synccli

import (
	"io"

	"github.com/spf13/cobra"

	"berth/internal/site/intercept/gate"
)

// guard is the command that berthd starts for way gate.
func guard(out io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: gate.GuardCommand, Short: "continue what berthd stopped, if it dies", Args: cobra.NoArgs, Hidden: true,
		Long: "Wait for the end of berthd, which starts this, and continue the processes that are stopped then.",
		RunE: func(*cobra.Command, []string) error { return gate.Guard(out) },
	}
}
