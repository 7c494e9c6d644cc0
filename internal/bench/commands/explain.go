package commands

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/bench"
	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/suspects"
	"berth/internal/sys/refuse"
)

// explainFlags are the flags of berth bench explain.
type explainFlags struct {
	flags
	from       string
	jobs       []int
	only       []string
	schedulers bool
}

func (a App) explainCmd() *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use: "explain [ROW]", Short: "which ingredient of a node carries the loss of a row",
		Args: cobra.MaximumNArgs(1),
		Long: `Run one row again while one ingredient at a time is changed, all of them in
random alternating order, and say which carries the loss, each with a 95 %
interval and corrected for how many there are. ROW is its name in a report,
such as "read 32K x512"; with --from and without ROW it is the one that lost
most of those judged worse.

Tried are nodes that lack something (user-namespace, seccomp, root), nodes that
have their data elsewhere (overlay), the host in cgroups (cgroup:NAME each,
cgroups all, cgroup-depth nested ones), and what both have in common: jobs:N,
cpu-placement, preconditioning, scheduler:NAME, and the order of trials. What
cannot be tried here is named in the report.

For user-namespace and seccomp there are, as long as it runs, nodes without
them, in which nothing but fio runs. --schedulers changes the I/O scheduler of
the disk of --device; it is put back, also after a kill.`,
		Example: `  berth bench explain "read 32K x512" --dir /srv/data
  berth bench explain --from result.json
  berth bench explain "write 64K x1" --only seccomp,cgroup,overlay
  berth bench explain "read 64K x64" --device /dev/nvme1n1 --schedulers`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.explain(cmd, &f, strings.Join(args, ""))
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.from, "from", "", "take the row, the disk and the length of trials from this report, a JSON `FILE`")
	f.onDisks(fl, "default 256MiB")
	f.onTrials(fl, "default 300ms", "default: as many as fit into the time", "default 10")
	fl.BoolVar(&f.schedulers, "schedulers", false, "try other I/O schedulers on the disk of --device")
	fl.IntSliceVar(&f.jobs, "jobs", nil, "other numbers `N,…` of threads to try (default 1 and 16 a core)")
	fl.StringSliceVar(&f.only, "only", nil, "try only these `NAMES`; cgroup, jobs and scheduler mean all of theirs")
	fl.DurationVar(&f.Budget, "budget", 5*time.Minute, "`TIME` for everything")
	return c
}

// row returns the row to measure, and takes flags that were not given from the report of --from.
func (f *explainFlags) row(a App, name string) (bed.Job, error) {
	f.Quick = true // for its defaults: many short trials
	if err := f.one(); err != nil {
		return bed.Job{}, err
	}
	if f.from == "" {
		if name == "" {
			return bed.Job{}, refuse.Invalidf("which row? Give its name, for example %q, or a report with --from", "read 32K x512")
		}
		return bench.ParseRow(name)
	}
	r, err := a.readReport(f.from)
	if err != nil {
		return bed.Job{}, err
	}
	j, err := bench.Choose(bench.JudgedRows(r.Study), name)
	if err != nil {
		return bed.Job{}, err
	}
	if len(f.Dirs)+len(f.Devices) == 0 {
		if dir := j.Target.Folder(); dir != "" {
			f.Dirs = []string{dir}
		} else {
			f.Devices = []string{j.Target.Path}
		}
	}
	f.Size, f.Run, f.Warm, f.MarginPct = cmp.Or(f.Size, j.Target.Size), cmp.Or(f.Run, j.Run), cmp.Or(f.Warm, j.Warm), cmp.Or(f.MarginPct, j.MarginPct)
	return j.Row, nil
}

func (a App) explain(cmd *cobra.Command, f *explainFlags, name string) (err error) {
	row, err := f.row(a, name)
	if err != nil {
		return err
	}
	if err := f.Complete(); err != nil {
		return err
	}
	x := suspects.Suspects{Berth: a.Open(), Options: f.Options, Jobs: f.jobs, Schedulers: f.schedulers, Only: f.only}
	defer func() { err = errors.Join(err, x.Close()) }()
	return a.measure(cmd, f.jsonFile, func(ctx context.Context, progress func(bed.Progress)) (*result.Study, error) {
		if err := x.Prepare(ctx, row); err != nil {
			return nil, err
		}
		return bench.Explain(ctx, f.Options, row, x.Sides, x.Lineup, progress)
	})
}
