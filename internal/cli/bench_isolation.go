package cli

import (
	"context"
	"errors"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"berth/internal/bench"
	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// isolationFlags are the flags of berth bench isolation.
type isolationFlags struct {
	bench.IsolationOptions
	on, size, jsonFile string
	parts              []string
	engine             string
}

func (a *app) benchIsolationCmd() *cobra.Command {
	var f isolationFlags
	c := &cobra.Command{
		Use: "isolation", Short: "what nodes get of a disk, and what they leave to others",
		Long: `Four questions about one disk, with nodes of image host that run fio at once:

  a  what being a node costs: 1, 2, 4, 8 nodes against as many processes on the
     host, random reads of objects of 16 KiB and 16 MiB
  b  whether a rate holds: 10, 20, 30, 40 MB/s, alone and beside 1 to 3 nodes
     without one
  c  whether weights hold: 100, 50:50, 50:25:25, 40:20:20:20 with 1, 16 and 64
     requests in flight, and what is lost in total
  d  what a reader waits beside writers: alone, unprotected, and protected by
     classes and rates

Rows are measured in random order, round after round; each figure has a 95 %
interval. Weights need a disk that shares by weight: --engine switches it while
part c and d run, and gives back what it had. A part that this disk cannot have
is left out with the reason. Interrupted, it prints what was measured and marks
it partial. berth bench report makes a page of the JSON.
share/doc/berth/isolation.md explains all of it.`,
		Example: `  berth bench isolation --quick
  berth bench isolation --on /srv/data --engine bfq --json isolation.json
  berth bench isolation --device /dev/nvme1n1 --part a,b       reads only
  berth bench isolation --device /dev/nvme1n1 --destroy-data   data is lost`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchIsolation(cmd, &f) },
	}
	fl := c.Flags()
	fl.StringVar(&f.on, "on", "", "`FOLDER` on the disk to measure (default /var/tmp)")
	fl.StringVar(&f.Device, "device", "", "block `DEVICE` to measure instead; only read, unless --destroy-data")
	fl.BoolVar(&f.DestroyData, "destroy-data", false, "write to --device: what is on it is lost")
	fl.StringVar(&f.size, "size", "", "how much of it is used, a `SIZE` (default 1GiB, 256MiB with --quick)")
	fl.StringSliceVar(&f.parts, "part", nil, "`PARTS` to measure, of a,b,c,d (default all)")
	fl.StringVar(&f.engine, "engine", "", "switch the disk to `ENGINE`, bfq, bfq-strict or iocost, for weights")
	fl.StringVar(&f.Model, "model", "", "what the disk can do, for engine iocost, as berth doctor --calibrate prints it: `\"rbps=N …\"`")
	fl.BoolVar(&f.Quick, "quick", false, "fewer rows and shorter trials, some five minutes in all")
	fl.DurationVar(&f.Run, "run", 0, "length of one trial, a `TIME` (default 4s, 800ms with --quick)")
	fl.IntVar(&f.Rounds, "rounds", 0, "`N` rounds (default 6; fewer give no interval)")
	fl.Float64Var(&f.MarginPct, "margin", 0, "largest difference that counts as none, in `PERCENT` (default 5, 10 with --quick)")
	fl.Uint64Var(&f.Seed, "seed", 0, "`SEED` of the order of trials (default: a random one, reported)")
	fl.StringVar(&f.jsonFile, "json", "", "write every trial to `FILE` as JSON; - is standard output")
	return c
}

func (a *app) benchIsolation(cmd *cobra.Command, f *isolationFlags) error {
	o := f.IsolationOptions
	o.Engine = vnode.Engine(f.engine)
	for _, p := range f.parts {
		o.Parts = append(o.Parts, bench.Part(strings.TrimSpace(p)))
	}
	if f.size != "" {
		size, err := vnode.ParseBytes(f.size)
		if err != nil {
			return refuse.Invalidf("--size: %w", err)
		}
		o.Size = int64(size)
	}
	if f.on == "" && o.Device == "" {
		f.on = "/var/tmp" // on a disk; /tmp may be in memory
	}
	if f.on != "" {
		dir, err := filepath.Abs(f.on)
		if err != nil {
			return err
		}
		o.Dir = dir
	}
	b, err := a.open()
	if err != nil {
		return err
	}
	host := bench.NodeHost{
		Host: bench.Host,
		Node: func(ctx context.Context, n *vnode.Node) (bench.Arm, func(), error) {
			if err := valid(n); err != nil {
				return nil, nil, err
			}
			return benchArm(ctx, b, n)
		},
		Set: func(ctx context.Context, name, key, value string) error {
			_, err := b.Set(ctx, name, []node.KeyValue{{Key: key, Value: value}})
			return err
		},
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
	defer stop()
	var progress func(bench.Progress)
	end := func() {}
	if a.onTerminal() {
		progress, end = bench.Bar(a.Err)
	}
	report, err := bench.RunIsolation(ctx, o, host, progress)
	end()
	if report == nil {
		return err
	}
	return errors.Join(a.writeReport(report, f.jsonFile), err)
}
