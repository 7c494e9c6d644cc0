package instance

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/site/slurm/instance"
	"berth/internal/sys/text"
)

func (c Commands) ls() *cobra.Command {
	var everybody bool
	cmd := c.JSONFlag(&cobra.Command{
		Use: "ls", Short: "the instances that are up or wait", Args: cobra.NoArgs,
		Long:              "List your instances: which wait and why, which are up, where, and until when.",
		Example:           "  berth instance ls\n  berth instance ls --all --json",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := instance.List(cmd.Context(), everybody)
			if err != nil {
				return err
			}
			if *c.JSON {
				return c.PrintJSON(all)
			}
			rows := [][]string{{"INSTANCE", "USER", "STATE", "NODE", "ADDRESS", "UNTIL"}}
			for _, i := range all {
				rows = append(rows, []string{strconv.Itoa(i.Job), i.User, state(i), text.OrDash(i.Node), text.OrDash(i.Address), until(i)})
			}
			return text.Rows(c.Out, text.Columns(c.Out), rows)
		},
	})
	cmd.Flags().BoolVar(&everybody, "all", false, "of all users")
	return cmd
}

func state(i instance.Instance) string {
	if i.Reason != "" {
		return strings.ToLower(i.State) + ": " + i.Reason
	}
	return strings.ToLower(i.State)
}
