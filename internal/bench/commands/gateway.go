package commands

import (
	"github.com/spf13/cobra"

	"berth/internal/bench/bed"
)

func (a App) gatewayCmd() *cobra.Command {
	var f flags
	var sets []string
	c := &cobra.Command{
		Use: "gateway", Short: "what nodes read and write by each gateway, and on each local place",
		Long: `Run fio on the host, and in 1, 2, 4 and 8 nodes that reach the same tree of
files by each gateway, in random alternating order:

  throughput  sequential writes and reads, with the CPU time for each GiB
  iops        random reads and writes of 4 KiB
  metadata    files made, looked at and removed
  storage     records of 256 KiB, of a file twice the memory of the node: on its
              delta, on scratch volumes (--pool), by NFS, on XFS with the
              default and with the published mount options

The arms are bind, nfs, sshfs, sshfs-direct, and sshfs-direct-sync with the
published options. What this host cannot do is left out with the reason. The
file servers are this host: berth starts the servers of sshfs and sshfs-direct
for the time of the run, and asks the NFS server that runs here (exportfs) to
export the tree to the nodes. The tree is .berth-bench.tree in --dir, open to
every user meanwhile, and is removed. share/doc/berth/gateways.md explains it.

Each row and gateway has six pairs and takes about 4 s a trial: all sets take
hours. Name sets, gateways and numbers of nodes.`,
		Example: `  berth bench gateway --quick --nodes 1
  berth bench gateway --set throughput --gateway bind --margin 2 --pairs 60
  berth bench gateway --set storage --pool vg0 --json storage.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := f.one()
			if err == nil {
				f.Names, err = bed.SetNames(sets)
			}
			if err != nil {
				return err
			}
			return a.table(cmd, &f)
		},
	}
	fl := c.Flags()
	fl.StringSliceVar(&sets, "set", nil, "`SETS` to measure (default throughput,iops,metadata)")
	fl.StringSliceVar(&f.Gateways, "gateway", nil, "`GATEWAYS` to measure (default all)")
	fl.IntSliceVar(&f.Nodes, "nodes", nil, "`COUNTS` of nodes that work at once (default 1,2,4,8)")
	fl.StringSliceVar(&f.Pools, "pool", nil, "`POOLS` of scratch volumes, for the set storage")
	fl.StringArrayVar(&f.Dirs, "dir", nil, "`FOLDER` on a disk that is measured (default /var/tmp)")
	fl.StringVar(&f.size, "size", "", "a `SIZE` of each node's file (default 1GiB, 256MiB with --quick)")
	fl.BoolVar(&f.Quick, "quick", false, "shorter trials and smaller files")
	f.onTrials(fl, "default 3s, 1s with --quick", "default 6; fewer give no interval", "default 5, 10 with --quick")
	return c
}
