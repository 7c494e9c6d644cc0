package commands

import (
	"github.com/spf13/cobra"

	"berth/internal/bench/bed"
)

func (a App) diskCmd() *cobra.Command {
	f := flags{Options: bed.Options{Names: []string{"disk"}}}
	c := &cobra.Command{
		Use: "disk", Short: "the same fio jobs on the host and in a node, in turn",
		Long: `Run fio on the host, in a throw-away node of image host, and on the host again
(the null arm), on one file, in random alternating order: random reads and
sequential writes by block size. Each row gets the penalty with a 95 %
interval, a verdict against the margin, and the smallest margin that this run
could have decided. The null arm shows how often the tool cries wolf.
share/doc/berth/METHOD.md explains the method. Interrupted, it prints what was
measured and marks it partial.`,
		Example: `  berth bench disk --quick
  berth bench disk --dir /srv/data --json result.json
  berth bench disk --device /dev/nvme1n1                  reads only
  berth bench disk --device /dev/nvme1n1 --destroy-data   writes: data is lost`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.one(); err != nil {
				return err
			}
			return a.table(cmd, &f)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.Quick, "quick", false, "four rows, done within two minutes")
	f.onDisks(fl, "default 1GiB, 256MiB with --quick")
	f.onTrials(fl, "default 1s, 300ms with --quick", "default: as many as fit into the time", "default 5, 10 with --quick")
	fl.DurationVar(&f.Budget, "budget", 0, "`TIME` for everything (default 20m, 100s with --quick)")
	fl.BoolVar(&f.NullOnly, "null-only", false, "no node: the host against itself")
	return c
}
