package pools

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/sys/text"
)

func (c Commands) ls() *cobra.Command {
	return c.JSONFlag(&cobra.Command{
		Use: "ls", Short: "list the pools, what they hold and what is free",
		Long: `List the pools, with the whole size and what is free of the volume group, thin
pool or file system, and with the volumes that they hold.`,
		Example: "  berth pool ls\n  berth pool ls --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.pools().List(cmd.Context())
			if err != nil {
				return err
			}
			if *c.JSON {
				return c.PrintJSON(all)
			}
			w := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tVOLUMES\tFREE\tSIZE\tIS")
			for _, p := range all {
				free, size, is := "-", "-", p.Pool.String()
				if p.Size > 0 {
					free, size = text.Human(p.Free), text.Human(p.Size)
				}
				if p.Trouble != "" {
					is += ": " + p.Trouble
				}
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", p.Name, len(p.Volumes), free, size, is)
			}
			return w.Flush()
		},
	})
}
