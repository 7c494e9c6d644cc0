// Package pools is the commands berth pool, for the pools that scratch volumes are made in.
package pools

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/act"
	"berth/internal/storage/scratch"
)

// Commands is what the commands need of the command line.
type Commands struct {
	act.App
}

func (c Commands) pools() scratch.Pools { return scratch.Pools{Dir: c.Open().Layout.Scratch()} }

// Pool returns the command berth pool.
func (c Commands) Pool() *cobra.Command {
	p := &cobra.Command{
		Use: "pool", Short: "the pools that scratch volumes of nodes are made in",
		Long: `The pools that scratch volumes of nodes are made in: an LVM volume group, a
folder, or memory. A node's spec names a pool by its name, in scratch; without a
name it is the pool named default.`,
		Example: "  berth pool add vg0 --vg vg0\n  berth pool add default --dir /srv/scratch\n  berth pool ls",
	}
	p.AddCommand(c.add(), c.ls(), c.rm())
	return p
}
