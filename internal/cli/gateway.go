package cli

import "github.com/spf13/cobra"

func (a *app) gatewayCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "gateway", Short: "be the file server of nodes on other hosts",
		Long:    "Serve folders of this host to nodes. A node names the server in its mounts.",
		Example: "  berth gateway serve /srv/data --user alice --allow 10.0.0.0/24",
	}
	c.AddCommand(a.gatewayServeCmd())
	return c
}
