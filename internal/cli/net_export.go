package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

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
