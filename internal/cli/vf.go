package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/network/sriov"
	"berth/internal/site/hostnet"
	"berth/internal/sys/refuse"
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

func (a *app) vfLsCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "ls", Short: "list adapters, virtual functions, and who has which",
		Long: `List the adapters that have SR-IOV, with driver, PCI address, NUMA node, link
and capacity; then the virtual functions that they have now, with what the
adapter keeps of each: MAC, VLAN, spoof check, trust, most that it may send
(max_tx_rate: what it sends only). LINK is "-" while a function is in a node.`,
		Example: "  berth vf ls\n  berth vf ls --json",
		RunE: func(*cobra.Command, []string) error {
			h := a.hostnet()
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
			h := a.hostnet()
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
			h := a.hostnet()
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

func (a *app) printVFChange(c *hostnet.VFChange) error {
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

func (a *app) vfRestoreCmd() *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use: "restore", Short: "make the virtual functions again that vf enable had made (called at boot)", Hidden: true,
		Long: `Make the virtual functions again that berth vf enable had made, where they are
gone: after a boot, or a reload of the adapter's driver. The unit that enable
writes calls it; so do berth repair and the keeper.`,
		Example: "  berth vf restore --wait 30s",
		RunE: func(cmd *cobra.Command, _ []string) error {
			h := a.hostnet()
			did, err := h.RestoreVFs(cmd.Context(), wait)
			for _, d := range did {
				fmt.Fprintln(a.Out, d)
			}
			return err
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "how long to wait for an adapter whose driver is not loaded yet")
	return c
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
