package commands

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/bench/wire"
)

// pingCmd is the hidden command that an arm runs for round trips.
func (a App) pingCmd() *cobra.Command {
	var run, warm time.Duration
	c := &cobra.Command{
		Use: "ping HOST:PORT", Hidden: true, Short: "round trips to berth bench net --serve",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := wire.Ping(cmd.Context(), args[0], run, warm)
			if cmd.Context().Err() != nil {
				return cmd.Context().Err()
			}
			if err != nil {
				p.Error = strings.TrimSpace(err.Error())
			}
			return json.NewEncoder(a.Out).Encode(p)
		},
	}
	c.Flags().DurationVar(&run, "run", time.Second, "")
	c.Flags().DurationVar(&warm, "warm", 0, "")
	return c
}
