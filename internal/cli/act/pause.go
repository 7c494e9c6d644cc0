package act

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"berth/internal/node"
	"berth/internal/sys/text"
)

// Pause returns the command berth pause.
func (a App) Pause() *cobra.Command {
	return &cobra.Command{
		Use: "pause NAME…", Short: "hold running nodes where they are", Args: cobra.MinimumNArgs(1),
		Long: `Stop every process of running nodes where it is, with the kernel's freezer:
they use no CPU, and keep their memory, their connections and their limits. A
paused node takes no new command (exit 5); berth set, stop, kill and rm work.`,
		Example:           "  berth pause wn-001\n  berth unpause wn-001",
		ValidArgsFunction: a.Names(0, node.Running),
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.change(cmd.Context(), names, (*node.Berth).Pause, "paused", "was paused already")
		},
	}
}

// change does something to each node, and says what: did if that changed it, else not.
func (a App) change(ctx context.Context, names []string, do func(*node.Berth, context.Context, string) (bool, error), did, not string) error {
	b := a.Open()
	return a.EachNode(b, names, func(name string, out io.Writer) error {
		changed, err := do(b, ctx, name)
		if err == nil {
			fmt.Fprintf(out, "%s %s\n", name, text.Either(changed, did, not))
		}
		return err
	})
}
