package cli

import "github.com/spf13/cobra"

func (a *app) netCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "net", Short: "what the network must know of the nodes: names, MACs, addresses",
		Long: `What the network must know of the nodes. A node keeps its MACs for life, so that
a managed network (DHCP, switch ports, firewalls) can be told beforehand.`,
		Example: "  berth net export --format dnsmasq\n  berth net pool add lab 02:00:5e:10:00:00-02:00:5e:10:00:ff",
	}
	c.AddCommand(a.netExportCmd(), a.netPoolCmd())
	return c
}
