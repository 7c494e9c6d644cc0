package show

import (
	"encoding/csv"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"berth/internal/node"
	"berth/internal/sys/text"
)

// NetExport returns the function that writes format; nil for an unknown format.
func NetExport(format string) func(io.Writer, []node.Row) error {
	switch format {
	case "csv":
		return exportCSV
	case "dnsmasq":
		return exportDnsmasq
	case "dhcpd":
		return exportDHCPD
	}
	return nil
}

func exportCSV(out io.Writer, rows []node.Row) error {
	w := csv.NewWriter(out)
	_ = w.Write([]string{"node", "hostname", "interface", "mode", "parent", "mac", "addresses", "exists"}) // w.Error reports failures
	for _, r := range rows {
		_ = w.Write([]string{r.Node, r.Hostname, r.Interface, r.Mode, r.Parent, r.MAC.String(), strings.Join(r.Address, " "), text.Either(r.Exists, "yes", "no")})
	}
	w.Flush()
	return w.Error()
}

// leases calls use for each row that has a MAC, with a unique host name: the first interface of a node gets the node's
// host name, the others append their own name.
func leases(rows []node.Row, use func(r node.Row, name string, v4, v6 netip.Addr) error) error {
	seen := map[string]bool{}
	for _, r := range rows {
		if r.MAC.IsZero() {
			continue
		}
		name, _, _ := strings.Cut(r.Hostname, ".")
		if seen[r.Node] {
			name += "-" + r.Interface
		}
		seen[r.Node] = true
		var v4, v6 netip.Addr
		for _, a := range r.Address {
			p, err := netip.ParsePrefix(a)
			switch {
			case err != nil:
			case p.Addr().Is4() && !v4.IsValid():
				v4 = p.Addr()
			case p.Addr().Is6() && !v6.IsValid():
				v6 = p.Addr()
			}
		}
		if err := use(r, name, v4, v6); err != nil {
			return err
		}
	}
	return nil
}

func exportDnsmasq(out io.Writer, rows []node.Row) error {
	return leases(rows, func(r node.Row, name string, v4, v6 netip.Addr) error {
		line := "dhcp-host=" + r.MAC.String()
		if v4.IsValid() {
			line += "," + v4.String()
		}
		if v6.IsValid() {
			line += ",[" + v6.String() + "]"
		}
		_, err := fmt.Fprintln(out, line+","+name)
		return err
	})
}

func exportDHCPD(out io.Writer, rows []node.Row) error {
	return leases(rows, func(r node.Row, name string, v4, _ netip.Addr) error {
		fixed := ""
		if v4.IsValid() {
			fixed = "  fixed-address " + v4.String() + ";\n"
		}
		_, err := fmt.Fprintf(out, "host %s-%s {\n  hardware ethernet %s;\n%s  option host-name \"%s\";\n}\n", r.Node, r.Interface, r.MAC, fixed, name)
		return err
	})
}
