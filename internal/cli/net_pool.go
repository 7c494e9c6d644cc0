package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/network/address"
)

func (a *app) macPools() address.HostPools { return address.PoolsOf(a.layout()) }

func (a *app) netPoolCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "pool", Short: "pools of MACs that nodes may take",
		Long: `Pools of MACs that nodes may take: with mac: pool NAME an interface claims the
lowest free one and keeps it until the node is removed. A pool is a file,
/var/lib/berth/pools/NAME: an address or a range FIRST-LAST a line, # comments.`,
		Example: "  berth net pool add lab 02:00:5e:10:00:00-02:00:5e:10:00:ff\n  berth net pool ls",
	}
	c.AddCommand(a.netPoolAddCmd(), a.netPoolLsCmd(), a.netPoolRmCmd())
	return c
}
