package commands

import (
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/bench/bed"
	"berth/internal/spec/vnode"
)

// isolationFlags are the flags of berth bench isolation.
type isolationFlags struct {
	flags
	parts  []string
	engine string
}

func (a App) isolationCmd() *cobra.Command {
	var f isolationFlags
	c := &cobra.Command{
		Use: "isolation", Short: "what nodes get of a disk, and what they leave to others",
		Long: `Four questions about one disk, with nodes of image host that run fio at once:

  a  what being a node costs: 1, 2, 4, 8 nodes against as many processes on the
     host, random reads of objects of 16 KiB and 16 MiB
  b  whether a rate holds: 10, 20, 30, 40 MB/s, alone and beside 1 to 3 nodes
     without one
  c  whether weights hold: 50:50, 50:25:25, 40:20:20:20 with 1, 16 and 64
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
  berth bench isolation --dir /srv/data --engine bfq --json isolation.json
  berth bench isolation --device /dev/nvme1n1 --part a,b       reads only
  berth bench isolation --device /dev/nvme1n1 --destroy-data   data is lost`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.isolation(cmd, &f) },
	}
	fl := c.Flags()
	fl.BoolVar(&f.Quick, "quick", false, "fewer rows and shorter trials, some five minutes in all")
	f.onDisks(fl, "default 1GiB, 256MiB with --quick")
	f.onTrials(fl, "default 4s, 800ms with --quick", "default 6; fewer give no interval", "default 5, 10 with --quick")
	fl.StringSliceVar(&f.parts, "part", nil, "`PARTS` to measure, of a,b,c,d (default all)")
	fl.StringVar(&f.engine, "engine", "", "switch the disk to `ENGINE`, bfq, bfq-strict or iocost, for weights")
	fl.StringVar(&f.Model, "model", "", "what the disk can do, for engine iocost, as berth doctor --calibrate prints it: `\"rbps=N …\"`")
	return c
}

func (a App) isolation(cmd *cobra.Command, f *isolationFlags) error {
	if err := f.one(); err != nil {
		return err
	}
	f.Engine = vnode.Engine(f.engine)
	var parts []bed.Part
	for _, p := range f.parts {
		parts = append(parts, bed.Part(strings.TrimSpace(p)))
	}
	var err error
	if f.Names, err = bed.PartNames(parts); err != nil {
		return err
	}
	return a.table(cmd, &f.flags)
}
