package cli

import (
	"encoding/csv"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

func (a *app) netCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "net", Short: "what the network must know of the nodes: names, MACs, addresses",
		Long: `What the network must know of the nodes. A node keeps its MACs for life, so that
a managed network (DHCP, switch ports, firewalls) can be told beforehand.`,
		Example: "  berth net export --format dnsmasq\n  berth net pool add lab 02:00:5e:10:00:00-02:00:5e:10:00:ff",
	}
	c.AddCommand(a.netExportCmd(), a.netPoolCmd())
	return c
}

func (a *app) netExportCmd() *cobra.Command {
	var files []string
	var format string
	c := &cobra.Command{
		Use: "export", Short: "print the table of names, MACs and addresses",
		Long: `Print the names, MACs and addresses of the nodes of this host; with -f those
too that the nodes of a spec would get if they were made now, in this order.
Formats: csv with a head line; dnsmasq (dhcp-host= lines); dhcpd (host blocks of
ISC dhcpd, IPv4). The last two leave out interfaces without a MAC.`,
		Example: "  berth net export --format csv\n  berth net export -f node.yaml --format dnsmasq > /etc/dnsmasq.d/nodes.conf",
		RunE: func(cmd *cobra.Command, _ []string) error {
			write := exporter(format)
			if write == nil {
				return refuse.Invalidf("--format %s: want csv, dnsmasq or dhcpd", format)
			}
			b, err := a.open()
			if err != nil {
				return err
			}
			var specs []*vnode.Node
			for _, f := range files {
				nodes, err := a.readSpecs(cmd.Context(), f)
				if err != nil {
					return err
				}
				specs = append(specs, nodes...)
			}
			rows, err := b.NetTable(cmd.Context(), specs)
			if err != nil {
				return err
			}
			if a.json {
				if rows == nil {
					rows = []node.NetRow{}
				}
				return a.printJSON(rows)
			}
			return write(a.Out, rows)
		},
	}
	c.Flags().StringArrayVarP(&files, "file", "f", nil, "also the nodes of a spec in `FILE`, \"-\": standard input; may be given again")
	c.Flags().StringVar(&format, "format", "csv", "csv, dnsmasq or dhcpd")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"csv", "dnsmasq", "dhcpd"}, cobra.ShellCompDirectiveNoFileComp))
	return a.jsonFlag(c)
}

// exporter returns the function that writes format; nil for an unknown format.
func exporter(format string) func(io.Writer, []node.NetRow) error {
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

func exportCSV(out io.Writer, rows []node.NetRow) error {
	w := csv.NewWriter(out)
	_ = w.Write([]string{"node", "hostname", "interface", "mode", "parent", "mac", "addresses", "exists"}) // w.Error reports failures
	for _, r := range rows {
		_ = w.Write([]string{r.Node, r.Hostname, r.Interface, r.Mode, r.Parent, r.MAC, strings.Join(r.Address, " "), word(r.Exists, "yes", "no")})
	}
	w.Flush()
	return w.Error()
}

// leases calls use for each row that has a MAC, with a unique host name: the first interface of a node gets the node's
// host name, the others append their own name.
func leases(rows []node.NetRow, use func(r node.NetRow, name string, v4, v6 netip.Addr) error) error {
	seen := map[string]bool{}
	for _, r := range rows {
		if r.MAC == "" {
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

func exportDnsmasq(out io.Writer, rows []node.NetRow) error {
	return leases(rows, func(r node.NetRow, name string, v4, v6 netip.Addr) error {
		line := "dhcp-host=" + r.MAC
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

func exportDHCPD(out io.Writer, rows []node.NetRow) error {
	return leases(rows, func(r node.NetRow, name string, v4, _ netip.Addr) error {
		fixed := ""
		if v4.IsValid() {
			fixed = "  fixed-address " + v4.String() + ";\n"
		}
		_, err := fmt.Fprintf(out, "host %s-%s {\n  hardware ethernet %s;\n%s  option host-name \"%s\";\n}\n", r.Node, r.Interface, r.MAC, fixed, name)
		return err
	})
}

func (a *app) netPoolCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "pool", Short: "pools of MACs that nodes may take",
		Long: `Pools of MACs that nodes may take: with mac: pool NAME an interface claims the
lowest free one and keeps it until the node is removed. A pool is a file,
/var/lib/berth/pools/NAME: an address or a range FIRST-LAST a line, # comments.`,
		Example: "  berth net pool add lab 02:00:5e:10:00:00-02:00:5e:10:00:ff\n  berth net pool ls",
	}
	add := &cobra.Command{
		Use: "add NAME ADDRESS|FIRST-LAST…", Short: "add addresses to a pool, which is made if need be", Args: cobra.MinimumNArgs(2),
		Example: "  berth net pool add lab 02:00:5e:10:00:01 02:00:5e:10:01:00-02:00:5e:10:01:ff",
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			p, err := b.AddPool(cmd.Context(), args[0], args[1:])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(p)
			}
			fmt.Fprintf(a.Out, "%s: %d addresses, %d in use\n", p.Name, p.Size, p.Used)
			return nil
		},
	}
	rm := &cobra.Command{
		Use: "rm NAME…", Short: "remove pools that no node uses", Args: cobra.MinimumNArgs(1),
		Example: "  berth net pool rm lab",
		RunE: func(cmd *cobra.Command, names []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			return each(names, func(name string) error {
				if err := b.RemovePool(cmd.Context(), name); err != nil {
					return err
				}
				fmt.Fprintf(a.Out, "%s removed\n", name)
				return nil
			})
		},
	}
	c.AddCommand(a.jsonFlag(add), a.netPoolLsCmd(), rm)
	return c
}

func (a *app) netPoolLsCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "ls", Short: "list the pools and how much of each is in use",
		Example: "  berth net pool ls\n  berth net pool ls --json",
		RunE: func(*cobra.Command, []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			all, err := b.Pools()
			if err != nil {
				return err
			}
			if a.json {
				if all == nil {
					all = []node.PoolInfo{}
				}
				return a.printJSON(all)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tSIZE\tUSED\tADDRESSES")
			for _, p := range all {
				fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", p.Name, p.Size, p.Used, strings.Join(p.Ranges, " "))
			}
			return w.Flush()
		},
	})
}
