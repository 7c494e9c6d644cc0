package commands

import (
	"github.com/spf13/cobra"

	"berth/internal/bench/report"
	"berth/internal/bench/result"
	"berth/internal/sys/refuse"
)

func (a App) compareCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "compare A.json B.json", Short: "two runs side by side: another kernel, another storage",
		Long: `Set the report.json of two calls of berth bench run side by side: what each arm
did in both, what the nodes lost in both, and what else is not the same. The
trials of two runs were not made in turn, so a difference may be that of two
hours of the day: the verdict is undecided, unless both were run with
--sessions and the spread between sessions is known.`,
		Example: "  berth bench compare kernel-6.1/report.json kernel-6.18/report.json",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			var both [2]*result.Study
			for i, path := range args {
				r, err := report.Open(path)
				if err != nil {
					return err
				}
				both[i] = r.Study
			}
			x := result.Compare(both[0], both[1], args[0], args[1])
			if len(x.Experiments) == 0 {
				return refuse.Invalidf("%s and %s have no row in common", args[0], args[1])
			}
			if *a.JSON {
				return x.JSON(a.Out)
			}
			r, err := report.Of(x, "compare")
			if err != nil {
				return err
			}
			return r.Text(a.Out)
		},
	}
	return a.JSONFlag(c)
}
