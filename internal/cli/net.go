package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
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
			write := show.NetExport(format)
			if write == nil {
				return refuse.Invalidf("--format %s: want csv, dnsmasq or dhcpd", format)
			}
			b := a.open()
			var specs []*vnode.Node
			for _, f := range files {
				nodes, err := a.readSpecs(cmd.Context(), f)
				if err != nil {
					return err
				}
				specs = append(specs, nodes...)
			}
			rows, err := b.Table(specs)
			if err != nil {
				return err
			}
			if a.json {
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
			p, err := a.hostnet().AddPool(cmd.Context(), args[0], args[1:])
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
		RunE: func(_ *cobra.Command, names []string) error {
			b := a.open()
			return each(names, func(name string) error {
				if err := a.hostnet().RemovePool(name, b.Specs); err != nil {
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
			all, err := a.hostnet().Pools()
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tSIZE\tUSED\tADDRESSES")
			for _, p := range all {
				fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", p.Name, p.Size, p.Used, strings.Join(p.Ranges, " "))
			}
			err = w.Flush()
			for _, p := range all {
				if p.Trouble != "" {
					fmt.Fprintln(a.Out, p.Trouble)
				}
			}
			return err
		},
	})
}
