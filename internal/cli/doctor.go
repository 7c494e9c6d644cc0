package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/host"
	"berth/internal/node"
	"berth/internal/node/mechanisms"
	"berth/internal/runner/choose"
	"berth/internal/runner/machine"
	"berth/internal/storage/gateway"
	"berth/internal/storage/sftpserve"
	"berth/internal/storage/siteusers"
	"berth/internal/sys/refuse"
)

func (a *app) doctorCmd() *cobra.Command {
	var f calibrateFlags
	var full bool
	c := &cobra.Command{
		Use: "doctor [DEVICE|FOLDER]", Short: "what this host can do, and how to mend what it cannot",
		Long: `Check what nodes need of this host: kernel, cgroups, file systems, runtimes,
network, and what spoils measurements. Each lack comes with why it matters and
a remedy to paste; --all prints what is fine too. The exit code is 3 when
something is missing without which no node runs.

Of a device or folder, print what lies under it down to the disks, and where
rates and weights act.

With --calibrate, measure a disk with fio for a minute instead: what io.cost
must know of it to share it out by weight. It reads and writes a file without a
name, on the device or folder given; only with --destroy-data the device itself.`,
		Example: "  berth doctor\n  berth doctor --all\n  berth doctor --json | jq '.[] | select(.state != \"ok\")'\n  berth doctor --calibrate /srv/data",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.path != "" {
				return a.calibrate(cmd, f)
			}
			if f.write || f.destroy {
				return refuse.Invalidf("--write and --destroy-data go with --calibrate")
			}
			if len(args) == 1 {
				return a.layers(args[0])
			}
			b := a.open()
			tried := host.Try(cmd.Context(), b.Layout.Lib, b.Layout.Run, gateway.CanIdmap, choose.New(b.Layout, mechanisms.Containers()).Report(cmd.Context()))
			checks := append(host.Doctor(host.New(), tried), append(connections(cmd.Context(), b), siteusers.Checks(b.Layout, "/etc")...)...)
			checks = append(append(checks, gateway.Checks(sftpserve.Can())...), machine.Check(cmd.Context()))
			var err error
			switch {
			case a.json:
				err = a.printJSON(checks)
			case full:
				err = host.Text(a.Out, checks)
			default:
				err = host.Brief(a.Out, checks)
			}
			if err != nil {
				return err
			}
			return host.Refusal(checks)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&full, "all", false, "print everything, also what is fine")
	return a.jsonFlag(c)
}

// connections returns a failed check for each running node that lost a connection.
func connections(ctx context.Context, b *node.Berth) []host.Check {
	troubled, err := b.Troubled(ctx)
	if err != nil {
		return nil // without permission to read the nodes, report on the host alone
	}
	var all []host.Check
	for _, s := range troubled {
		all = append(all, host.Check{
			Area: "nodes", Name: "node " + s.Name, State: host.Broken, Found: strings.Join(s.Trouble, "; "),
			Why:    "the node runs without this network; it is connected again as soon as what is gone is back",
			Remedy: "berth repair",
		})
	}
	return all
}
