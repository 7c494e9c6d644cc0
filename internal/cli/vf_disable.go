package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/network/sriov"
)

func (a *app) vfDisableCmd() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "disable ADAPTER", Short: "take an adapter's virtual functions away, for good", Args: cobra.ExactArgs(1),
		Long: `Take an adapter's virtual functions away, for good. Refused while one of them is
in use (exit 5), by a node or anything else; and, as with enable, without --yes
where the host or the SSH session that asks hangs on the adapter.`,
		Example:           "  berth vf disable enp4s0f0",
		ValidArgsFunction: a.adapterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			h := sriov.OnHost(a.layout())
			done, err := h.DisableVFs(cmd.Context(), args[0], yes)
			if err != nil {
				return err
			}
			return a.printVFChange(done)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "even if the host, or this session, hangs on the adapter")
	return a.jsonFlag(c)
}
