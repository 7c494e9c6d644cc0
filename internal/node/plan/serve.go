package plan

import (
	"net/netip"
	"slices"

	"berth/internal/network/link"
	"berth/internal/network/nat"
	"berth/internal/network/netserve"
	"berth/internal/node/names"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Served returns the files of the process that serves names and relays.
func Served(l layout.Layout) netserve.Places {
	return netserve.Places{Socket: l.NetserveSocket(), Lock: l.NetserveLock(), Log: l.KeeperLog()}
}

// mostRelayed is how many ports of the host's loopback lead to one node.
const mostRelayed = 1024

// serve returns the step that makes a node known by name and its ports reachable from the host's loopback; none for a node
// without a network of mode nat.
func (f *Facts) serve(n *vnode.Node, claims []step.Step) ([]step.Step, error) {
	s := &netserve.Serve{Places: Served(f.Layout), Entry: netserve.Entry{Node: n.Name}}
	for ifname, c := range link.GivenBy(claims) {
		i := slices.IndexFunc(n.Network, func(w vnode.Network) bool { return w.Name == ifname })
		if i < 0 {
			continue
		}
		s.Entry.Names = append(s.Entry.Names, natNames(n, c))
		for _, p := range n.Network[i].Published() {
			s.Entry.Relays = append(s.Entry.Relays, relays(p, c)...)
		}
	}
	if len(s.Entry.Relays) > mostRelayed {
		return nil, refuse.Cannotf("publish fewer, or at an address of the host: ADDRESS:"+n.Name+"'s ports", "node %s: %d ports of the host's loopback lead to it, at most %d", n.Name, len(s.Entry.Relays), mostRelayed)
	}
	if len(s.Entry.Names) == 0 {
		return nil, nil
	}
	return []step.Step{s}, nil
}

func natNames(n *vnode.Node, c *nat.ClaimAddress) netserve.Named {
	b := netserve.Bridge{Name: c.Places.Bridge, At: []netip.Addr{nat.Gateway(c.Network.V4).Addr()}}
	known := netserve.Named{Names: append([]string{n.Name}, names.Others(n)...)}
	for _, a := range c.Network.Of(c.V4) {
		b.Prefixes = append(b.Prefixes, a.Masked())
		known.Addresses = append(known.Addresses, a.Addr())
	}
	known.Bridge = b
	return known
}

// relays returns the ports of the host's loopback that an entry of ports takes. They lead to the node's IPv4 address.
func relays(p vnode.Port, c *nat.ClaimAddress) (all []netserve.Relay) {
	var at []netip.Addr
	switch {
	case !p.Address.IsValid() || p.Address == netip.IPv6Unspecified():
		if at = append(at, netip.MustParseAddr("127.0.0.1")); c.Network.V6.IsValid() {
			at = append(at, netip.IPv6Loopback())
		}
	case p.Address.IsUnspecified():
		at = append(at, netip.MustParseAddr("127.0.0.1"))
	case p.Address.IsLoopback():
		at = append(at, p.Address)
	}
	for _, a := range at {
		for i := range p.Count {
			all = append(all, netserve.Relay{
				Proto: p.Proto, At: netip.AddrPortFrom(a, p.Host+uint16(i)), To: netip.AddrPortFrom(c.V4, p.Node+uint16(i)),
			})
		}
	}
	return all
}

// known returns the node's own files in /etc: with mode nat, the node has the addresses that Berth gave it, and asks the
// bridge for names.
func (f *Facts) known(n *vnode.Node, claims []step.Step) []names.File {
	given, resolver := link.GivenBy(claims), f.Resolver
	as := *n
	as.Network = slices.Clone(n.Network)
	for i := range as.Network {
		c := given[as.Network[i].Name]
		if c == nil {
			continue
		}
		as.Network[i].Address = c.Addresses()
		resolver = names.Behind(f.Resolver, nat.Gateway(c.Network.V4).Addr(), netserve.Zone)
	}
	return names.Files(&as, resolver)
}
