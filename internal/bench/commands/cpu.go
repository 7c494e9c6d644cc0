package commands

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"berth/internal/bench/wire"
)

// cpuCmd is the hidden command that an arm runs around iperf3.
func (a App) cpuCmd() *cobra.Command {
	return &cobra.Command{
		Use: "cpu -- CMD ARG…", Hidden: true, Short: "run CMD and count what the machine's CPUs did meanwhile",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spent, err := wire.WithCPU(cmd.Context(), args)
			return errors.Join(json.NewEncoder(a.Out).Encode(spent), err)
		},
	}
}
