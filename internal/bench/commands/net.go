package commands

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/bench/bed"
	"berth/internal/bench/stat"
	"berth/internal/bench/wire"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// netFlags are the flags of berth bench net.
type netFlags struct {
	flags
	serve bool
}

func (a App) netCmd() *cobra.Command {
	f := netFlags{flags: flags{Options: bed.Options{Names: []string{"net"}}}}
	c := &cobra.Command{
		Use: "net", Short: "the same network traffic from the host and from nodes, in turn",
		Long: `Run iperf3, in both directions, and round trips to a peer: from the host, from
the host again (the null arm), and from a throw-away node for each --network,
in random alternating order. Each line gets how much worse the node is than the
host with a 95 % interval, a verdict against the margin, and the smallest
margin that this run could have decided. CPU s/GB is what all CPUs of this
machine were busy for 10^9 bytes.

The peer is another machine on which berth bench net --serve runs; then each
--network needs an address in the peer's network. Without --peer, a node on
this machine is the peer: that measures the host's software path, no wire.
20 s after 3 s of warm-up a trial by default, about half an hour in all.
share/doc/berth/METHOD.md explains the method. Interrupted, it prints what was
measured and marks it partial.`,
		Example: `  berth bench net --quick
  berth bench net --serve                    on the peer
  berth bench net --peer 192.0.2.9 --json net.json \
    --network macvlan:eth0,192.0.2.50/24 --network bridge:br0,192.0.2.51/24`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.serve {
				return a.serve(cmd, &f)
			}
			return a.net(cmd, &f)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.Quick, "quick", false, "1 s after 1 s of warm-up a trial, done within three minutes")
	f.onNetworks(fl)
	f.onTrials(fl, "whole seconds; default 20s, 1s with --quick", fmt.Sprintf("default %d, fewer give no interval", stat.MinPairs), "default 5, 10 with --quick")
	fl.BoolVar(&f.serve, "serve", false, "be the peer, until Ctrl-C")
	return c
}

// onNetworks adds the flags about networks.
func (f *flags) onNetworks(fl *pflag.FlagSet) {
	fl.StringVar(&f.Peer, "peer", "", "`ADDRESS` of the peer (default: one on this machine)")
	fl.StringArrayVar(&f.Networks, "network", nil, "a `NETWORK` to measure, MODE:PARENT,ADDRESS…; without --peer: bridge or macvlan (default both)")
	fl.IntVar(&f.Port, "port", 0, fmt.Sprintf("iperf3's TCP `PORT` at the peer; round trips use the next (default %d)", wire.DefaultPort))
}

// serve runs the peer until it is interrupted.
func (a App) serve(cmd *cobra.Command, f *netFlags) error {
	if f.Peer != "" || len(f.Networks) > 0 {
		return refuse.Invalidf("--serve goes with --port alone")
	}
	return wire.Serve(cmd.Context(), a.Out, cmp.Or(f.Port, wire.DefaultPort))
}

func (a App) net(cmd *cobra.Command, f *netFlags) error {
	if _, err := parseNetworks(f.Peer, f.Networks); err != nil { // at once, before anything is made
		return err
	}
	return a.table(cmd, &f.flags)
}

// parseNetworks returns the networks to measure.
func parseNetworks(peer string, networks []string) ([]vnode.Network, error) {
	ownPeer := peer == ""
	if ownPeer && networks == nil {
		networks = []string{string(vnode.Bridge), string(vnode.Macvlan)}
	}
	if !ownPeer {
		if addr, err := netip.ParseAddr(peer); err != nil || addr.IsUnspecified() || addr.IsMulticast() {
			return nil, refuse.Invalidf("--peer %s: want an address, for example 192.0.2.9", peer)
		}
		if len(networks) == 0 {
			return nil, refuse.Invalidf("--peer needs a --network by which a node reaches it, for example macvlan:eth0,192.0.2.50/24")
		}
	}
	var all []vnode.Network
	for _, s := range networks {
		n := vnode.ParseNetwork(s)
		switch {
		case slices.ContainsFunc(all, func(o vnode.Network) bool { return o.Mode == n.Mode }):
			return nil, refuse.Invalidf("--network %s: mode %s is measured already", s, n.Mode)
		case ownPeer && (n.Mode != vnode.Bridge && n.Mode != vnode.Macvlan):
			return nil, refuse.Invalidf("--network %s: without --peer only bridge and macvlan can be measured", s)
		case ownPeer && (n.Parent != "" || len(n.Address) > 0):
			return nil, refuse.Invalidf("--network %s: without --peer, parent and address are Berth's to choose: give the mode alone", s)
		case !ownPeer && (n.Parent == "" || len(n.Address) == 0):
			return nil, refuse.Invalidf("--network %s: with --peer, a parent and an address are needed: %s:eth0,192.0.2.50/24", s, n.Mode)
		}
		all = append(all, n)
	}
	return all, nil
}
