package instance

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/site/slurm/instance"
)

func (c Commands) down() *cobra.Command {
	return &cobra.Command{
		Use: "down INSTANCE…", Short: "end instances, and give their nodes back", Args: cobra.MinimumNArgs(1),
		Long:              "End instances. What they wrote to their own root and scratch is gone.",
		Example:           "  berth instance down 17",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.Each(args, func(name string) error {
				i, err := find(cmd.Context(), name)
				if err != nil {
					return err
				}
				if err := instance.Down(cmd.Context(), i.Job); err != nil {
					return err
				}
				fmt.Fprintf(c.Out, "instance %d ends\n", i.Job)
				return forget(i.Job)
			})
		},
	}
}
