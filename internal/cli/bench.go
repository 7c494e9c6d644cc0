package cli

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"berth/internal/bench"
	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

func (a *app) benchCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "bench", Short: "measure what a node costs against the bare host",
		Example: "  berth bench disk --quick\n  berth bench net --quick\n  berth bench run all --budget 20m",
	}
	c.AddCommand(a.benchListCmd(), a.benchRunCmd(), a.benchDiskCmd(), a.benchNetCmd(), a.benchIsolationCmd(), a.benchExplainCmd(), a.benchReportCmd(), a.benchCompareCmd(), a.benchCPUCmd(), a.benchPingCmd())
	return c
}

// benchFlags are the flags of berth bench disk.
type benchFlags struct {
	bench.Options
	size, jsonFile string
	nullOnly       bool
}

func (a *app) benchDiskCmd() *cobra.Command {
	var f benchFlags
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
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchDisk(cmd, &f) },
	}
	fl := c.Flags()
	fl.BoolVar(&f.Quick, "quick", false, "four rows, done within two minutes")
	fl.StringVar(&f.Dir, "dir", "", "`FOLDER` whose file system is measured (default /var/tmp)")
	fl.StringVar(&f.Device, "device", "", "block `DEVICE` to measure instead; only read, unless --destroy-data")
	fl.BoolVar(&f.DestroyData, "destroy-data", false, "write to --device: what is on it is lost")
	fl.StringVar(&f.size, "size", "", "how much of it is used, a `SIZE` (default 1GiB, 256MiB with --quick)")
	fl.DurationVar(&f.Run, "run", 0, "length of one trial, a `TIME` (default 1s, 300ms with --quick)")
	fl.IntVar(&f.Pairs, "pairs", 0, "`N` pairs a row (default: as many as fit into the time)")
	fl.DurationVar(&f.Budget, "budget", 0, "`TIME` for everything (default 20m, 100s with --quick)")
	fl.Float64Var(&f.MarginPct, "margin", 0, "largest penalty that counts as none, in `PERCENT` (default 5, 10 with --quick)")
	fl.Uint64Var(&f.Seed, "seed", 0, "`SEED` of the order of trials (default: a random one, reported)")
	fl.BoolVar(&f.nullOnly, "null-only", false, "no node: the host against itself")
	fl.StringVar(&f.jsonFile, "json", "", "write every trial to `FILE` as JSON; - is standard output")
	return c
}

func (a *app) benchDisk(cmd *cobra.Command, f *benchFlags) error {
	b, err := a.open()
	if err != nil {
		return err
	}
	o := f.Options
	if f.size != "" {
		size, err := vnode.ParseBytes(f.size)
		if err != nil {
			return refuse.Invalidf("--size: %w", err)
		}
		o.Size = int64(size)
	}
	if o.Dir == "" && o.Device == "" {
		o.Dir = "/var/tmp" // on a disk; /tmp may be in memory
	}
	if o.Dir != "" {
		if o.Dir, err = filepath.Abs(o.Dir); err != nil {
			return err
		}
	}
	arms := bench.Arms{Host: bench.Host, Null: bench.Host}
	if !f.nullOnly {
		n := node.BenchNode(o.Dir, o.Device, o.DestroyData)
		arm, done, err := b.BenchArm(cmd.Context(), n)
		if err != nil {
			return err
		}
		defer done()
		arms.Node, o.Node = arm, n
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
	defer stop()
	var progress func(bench.Progress)
	end := func() {}
	if a.onTerminal() {
		progress, end = bench.Bar(a.Err)
	}
	report, err := bench.Run(ctx, o, arms, progress)
	end()
	if report == nil {
		return err
	}
	return errors.Join(a.writeReport(report, f.jsonFile), err)
}

// printer is a report that prints itself as text and as JSON.
type printer interface {
	Text(io.Writer) error
	JSON(io.Writer) error
}

// writeReport prints the table and writes the JSON to jsonFile, if one is given. With jsonFile "-" it prints only the JSON.
func (a *app) writeReport(r printer, jsonFile string) error {
	if jsonFile == "-" {
		return r.JSON(a.Out)
	}
	if err := r.Text(a.Out); err != nil || jsonFile == "" {
		return err
	}
	return writeFile(jsonFile, r.JSON)
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
