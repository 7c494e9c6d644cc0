package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/network/sriov"
)

func (a *app) vfLsCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "ls", Short: "list adapters, virtual functions, and who has which",
		Long: `List the adapters that have SR-IOV, with driver, PCI address, NUMA node, link
and capacity; then the virtual functions that they have now, with what the
adapter keeps of each: MAC, VLAN, spoof check, trust, most that it may send
(max_tx_rate: what it sends only). LINK is "-" while a function is in a node.`,
		Example: "  berth vf ls\n  berth vf ls --json",
		RunE: func(*cobra.Command, []string) error {
			h := sriov.OnHost(a.layout())
			all, err := h.VFs()
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			return show.VFs(a.Out, all)
		},
	})
}
