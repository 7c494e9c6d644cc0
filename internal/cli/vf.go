package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/network/sriov"
	"berth/internal/sys/text"
)

func (a *app) vfCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "vf", Short: "the virtual functions of this host's network adapters (SR-IOV)",
		Long: `The virtual functions of this host's network adapters. A node has one to itself
with network mode sriov: its own hardware queue and MAC on the wire, no bridge
in between. It gets one when it starts and gives it back when it ends.`,
		Example: "  berth vf ls\n  berth vf enable enp4s0f0 7\n  berth vf disable enp4s0f0",
	}
	c.AddCommand(a.vfLsCmd(), a.vfEnableCmd(), a.vfDisableCmd(), a.vfRestoreCmd())
	return c
}

func (a *app) printVFChange(c *sriov.VFChange) error {
	if a.json {
		return a.printJSON(c)
	}
	how := "unchanged: "
	if c.Changed {
		how = ""
	}
	fmt.Fprintf(a.Out, "%s: %s%s\n", c.PF.Name, how, text.Count(len(c.PF.VFs), "virtual function"))
	switch {
	case c.Unit != "":
		fmt.Fprintf(a.Out, "\nat each boot, by %s:\n\n%s", c.Unit, c.Text)
	case c.Removed != "":
		fmt.Fprintf(a.Out, "removed %s\n", c.Removed)
	case len(c.PF.VFs) > 0:
		fmt.Fprintln(a.Out, "no systemd runs here: call berth vf restore at boot to have them again")
	}
	return nil
}

// adapterNames completes the name of an adapter with SR-IOV.
func (a *app) adapterNames(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := sriov.List(sriov.Sys)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, len(all))
	for i, pf := range all {
		names[i] = pf.Name
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
