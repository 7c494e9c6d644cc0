package show

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"berth/internal/network/sriov"
	"berth/internal/sys/text"
)

// VFs writes the adapters that have SR-IOV, then their virtual functions.
func VFs(out io.Writer, all []sriov.PF) error {
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d of %d\n", pf.Name, pf.PCI, text.OrDash(pf.Driver), numa, linkText(pf), len(pf.VFs), pf.Total)
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
				mac, note = vf.Admin.MAC.String(), adminNote(*vf.Admin)
				if vf.Admin.VLAN != 0 {
					vlan = strconv.Itoa(vf.Admin.VLAN)
				}
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", pf.Name, vf.Index, vf.PCI, text.OrDash(vf.Driver), text.OrDash(vf.Link), mac, vlan, text.OrDash(vf.Owner), note)
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
