package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"berth/internal/network/sriov"
	"berth/internal/sys/refuse"
)

func (a *app) vfEnableCmd() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "enable ADAPTER N", Short: "divide an adapter into N virtual functions, now and at each boot", Args: cobra.ExactArgs(2),
		Long: `Divide an adapter into N virtual functions, each with a MAC that stays the same,
now and at each boot: where systemd runs, a unit is written and shown. The
adapter's link goes down for a moment; one that carries the host's default
route, or the SSH session that asks, is refused without --yes (exit 5).`,
		Example:           "  berth vf enable enp4s0f0 7",
		ValidArgsFunction: a.adapterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return refuse.Invalidf("%q is not a number of virtual functions", args[1])
			}
			h := sriov.OnHost(a.layout())
			done, err := h.EnableVFs(cmd.Context(), args[0], n, yes)
			if err != nil {
				return err
			}
			return a.printVFChange(done)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "even if the host, or this session, hangs on the adapter")
	return a.jsonFlag(c)
}
