package commands

import (
	"cmp"

	"github.com/spf13/cobra"

	"berth/internal/bench/syncbed"
)

func (a App) syncCmd() *cobra.Command {
	var f flags
	var sets, rates []string
	c := &cobra.Command{
		Use: "sync", Short: "what nodes get of file servers that hold their limits (VNode Sync)",
		Long: `Make a site of file servers on this machine, each with an agent (berthd), a disk
and an address of its own, and nodes that read and write there:

  aggregate   a node whose rate is for all servers together, alone and beside a
              node without a limit; a client and a file a server (N-N), and as
              many clients on one file of one server (N-1): what it gets of
              what was asked
  foreground  how long a node loads its data and then computes, while another
              one reads at 5 to 100 MB/s; with a priority, too, where the disk
              can have one
  cost        a node without limits whose server's process is in its group,
              against one in no group

A server is berth gateway serve --sync. Its disk is a loop device with direct
I/O, of a file in .berth-bench.sync in --dir, and its state is in /run; all of
it is removed, also if the run is killed. It takes sshfs, fio, mkfs.ext4,
berthd, and for several servers berth-site. share/doc/berth/sync.md explains it.

Each row has six pairs: all sets take more than two hours. Interrupted, it
prints what was measured and marks it partial.`,
		Example: `  berth bench sync --quick
  berth bench sync --set aggregate --servers 4 --rate 20MB/s,80MB/s
  berth bench sync --set cost --pairs 30 --json cost.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := f.one()
			if err == nil {
				f.Rates, err = syncbed.Rates(rates)
			}
			if err == nil {
				f.Names, err = syncbed.Names(sets, &f.Options)
			}
			if err != nil {
				return err
			}
			size, margin := int64(syncbed.Size), 3.
			if f.Quick {
				size, margin = syncbed.QuickSize, 10
			}
			f.Size, f.MarginPct = cmp.Or(f.Size, size), cmp.Or(f.MarginPct, margin)
			return a.table(cmd, &f)
		},
	}
	fl := c.Flags()
	fl.StringSliceVar(&sets, "set", nil, "`SETS` to measure (default aggregate,foreground,cost)")
	fl.IntSliceVar(&f.Servers, "servers", nil, "`COUNTS` of file servers (default 1,2,4; 1,2 with --quick)")
	fl.StringSliceVar(&rates, "rate", nil, "`RATES` to ask for (default 10, 20, 40, 80 and 160MB/s; 40MB/s with --quick)")
	fl.StringArrayVar(&f.Dirs, "dir", nil, "`FOLDER` on the disk that holds the servers' (default /var/tmp)")
	fl.StringVar(&f.size, "size", "", "a `SIZE` of each of the two files on a server (default 256MiB, 64MiB with --quick)")
	fl.BoolVar(&f.Quick, "quick", false, "fewer rows, shorter trials and smaller files: some minutes")
	f.onTrials(fl, "default 5s, 1s with --quick", "default 6; fewer give no interval", "default 3, 10 with --quick")
	return c
}
