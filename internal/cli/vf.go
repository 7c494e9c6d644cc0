package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/sriov"
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
			b, err := a.open()
			if err != nil {
				return err
			}
			all, err := b.VFs()
			if err != nil {
				return err
			}
			if a.json {
				if all == nil {
					all = []sriov.PF{}
				}
				return a.printJSON(all)
			}
			return printVFs(a.Out, all)
		},
	})
}

func printVFs(out io.Writer, all []sriov.PF) error {
	if len(all) == 0 {
		fmt.Fprintln(out, "no adapter of this host has SR-IOV")
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ADAPTER\tPCI\tDRIVER\tNUMA\tLINK\tVFS")
	for _, pf := range all {
		numa := "-"
		if pf.NUMA >= 0 {
			numa = strconv.Itoa(pf.NUMA)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d of %d\n", pf.Name, pf.PCI, orDash(pf.Driver), numa, linkText(pf), len(pf.VFs), pf.Total)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(pf sriov.PF) bool { return len(pf.VFs) > 0 }) {
		return nil
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "ADAPTER\tVF\tPCI\tDRIVER\tLINK\tMAC\tVLAN\tNODE\tNOTE")
	for _, pf := range all {
		for _, vf := range pf.VFs {
			mac, vlan, note := "-", "-", ""
			if vf.Admin != nil {
				mac, note = vf.Admin.MAC, adminNote(*vf.Admin)
				if vf.Admin.VLAN != 0 {
					vlan = strconv.Itoa(vf.Admin.VLAN)
				}
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", pf.Name, vf.Index, vf.PCI, orDash(vf.Driver), orDash(vf.Link), mac, vlan, orDash(vf.Owner), note)
		}
	}
	return w.Flush()
}

func linkText(pf sriov.PF) string {
	switch {
	case !pf.Up:
		return "down"
	case !pf.Carrier:
		return "no carrier"
	case pf.Speed > 0:
		return fmt.Sprintf("%d Mbit/s", pf.Speed)
	}
	return "up"
}

// adminNote names the settings of a virtual function that are not the default.
func adminNote(a sriov.Admin) string {
	var all []string
	if !a.SpoofChk {
		all = append(all, "no spoof check")
	}
	if a.Trust {
		all = append(all, "trusted")
	}
	if a.MaxTxRate > 0 {
		all = append(all, fmt.Sprintf("sends %d Mbit/s", a.MaxTxRate))
	}
	if a.State == 2 {
		all = append(all, "link down")
	}
	return strings.Join(all, ", ")
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
			b, err := a.open()
			if err != nil {
				return err
			}
			done, err := b.EnableVFs(cmd.Context(), args[0], n, yes)
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
			b, err := a.open()
			if err != nil {
				return err
			}
			done, err := b.DisableVFs(cmd.Context(), args[0], yes)
			if err != nil {
				return err
			}
			return a.printVFChange(done)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "even if the host, or this session, hangs on the adapter")
	return a.jsonFlag(c)
}

func (a *app) printVFChange(c *node.VFChange) error {
	if a.json {
		return a.printJSON(c)
	}
	how := "unchanged: "
	if c.Changed {
		how = ""
	}
	fmt.Fprintf(a.Out, "%s: %s%s\n", c.PF.Name, how, count(len(c.PF.VFs), "virtual function"))
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
			b, err := a.open()
			if err != nil {
				return err
			}
			did, err := b.RestoreVFs(cmd.Context(), wait)
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
