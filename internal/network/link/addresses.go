package link

import (
	"net"
	"slices"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/network/dhcp"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
)

// lease returns the step that leases an address for the network of index i; nil if that network does not use DHCP.
func (in *Input) lease(i int) *address.DHCP {
	n := in.Networks[i]
	if !n.DHCP {
		return nil
	}
	_, routes := byFamily(n)
	return &address.DHCP{
		Inside: netif.Inside{NS: in.NS, If: n.Name}, Hostname: in.Hostname,
		Adapter: isAdapter(n),
		// One default route: the spec's, else that of the first network with DHCP.
		Default: !slices.ContainsFunc(in.Networks, func(n vnode.Network) bool { return isIPv4(n.Gateway) || n.Mode == vnode.NAT }) &&
			!slices.ContainsFunc(in.Networks[:i], func(n vnode.Network) bool { return n.DHCP }),
		Routes: routes, File: dhcp.LeaseFile(in.Run, n.Name),
	}
}

// byFamily splits a network's routes into those that can be set at once and those that need the leased address.
func byFamily(n vnode.Network) (now, leased []vnode.Route) {
	for _, r := range n.Routes {
		if n.DHCP && isIPv4(r.Via) {
			leased = append(leased, r)
		} else {
			now = append(now, r)
		}
	}
	return now, leased
}

func isIPv4(s string) bool { return net.ParseIP(s).To4() != nil }

// announcement returns how the addresses of a network are announced.
func (in *Input) announcement(n vnode.Network) address.Announcement {
	way, hub := in.way(n)
	return address.Announcement{Way: way, Hub: hub, Adapter: isAdapter(n), Again: n.Parent != ""}
}

// isAdapter reports whether an interface is a real adapter, whose carrier comes late.
func isAdapter(n vnode.Network) bool { return n.Mode == vnode.Phys || n.Mode == vnode.SRIOV }

// way returns at which link the packets that an interface sends are checked, and where that link is.
func (in *Input) way(n vnode.Network) (netif.Way, netif.Hub) {
	switch {
	case n.Mode == vnode.Bridge && n.Parent == "":
		return netif.Peer, in.Hub
	case n.Mode == vnode.Bridge || n.Mode == vnode.NAT:
		return netif.Peer, ""
	}
	return netif.Egress, ""
}

// probe returns the step that probes a network's addresses; nil if there is nothing to probe. The host-only bridge and the bridge of
// mode nat have an index of addresses instead; reserved addresses are not probed either, because the network's admins keep them free.
func (in *Input) probe(n vnode.Network, own mac.Address) *address.Probe {
	if len(n.Address) == 0 || n.Reserved || n.Mode == vnode.Bridge && n.Parent == "" || n.Mode == vnode.NAT {
		return nil
	}
	return &address.Probe{
		Inside: netif.Inside{NS: in.NS, If: n.Name}, MAC: own, Address: n.Address,
		Adapter: isAdapter(n),
	}
}
