package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"berth/internal/bench"
	"berth/internal/refuse"
	"berth/internal/report"
)

func (a *app) benchCompareCmd() *cobra.Command {
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
			var both [2]*bench.Study
			for i, path := range args {
				s, err := readStudy(path)
				if err != nil {
					return err
				}
				both[i] = s
			}
			x := bench.Compare(both[0], both[1], args[0], args[1])
			if len(x.Experiments) == 0 {
				return refuse.Invalidf("%s and %s have no row in common", args[0], args[1])
			}
			if a.json {
				return x.JSON(a.Out)
			}
			return x.Text(a.Out)
		},
	}
	return a.jsonFlag(c)
}

// readStudy reads the study in a report that berth bench wrote.
func readStudy(path string) (*bench.Study, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, refuse.NotFoundf("there is no file %s", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read a report: %w", err)
	}
	defer f.Close()
	r, err := report.Read(f, path)
	if err != nil {
		return nil, err
	}
	return r.Study, nil
}
