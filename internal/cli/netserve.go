package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/network/netserve"
)

func (a *app) netserveCmd() *cobra.Command {
	return &cobra.Command{
		Use: "netserve SOCKET", Args: cobra.ExactArgs(1), Short: "answer names of nodes, relay the loopback's ports (started by the nodes)", Hidden: true,
		Long: "Started by the first node of mode nat and gone with the last. No need to call it.",
		RunE: func(cmd *cobra.Command, _ []string) error { return netserve.Run(cmd.Context(), 3) },
	}
}
