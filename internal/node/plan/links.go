package plan

import (
	"berth/internal/host/netif"
	"berth/internal/network/link"
	"berth/internal/network/nat"
	"berth/internal/network/shape"
	"berth/internal/network/sriov"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/mac"
	"berth/internal/sys/step"
)

// Rates returns the rates that a node asks for.
func Rates(n *vnode.Node, f Facts) ([]*shape.Rate, error) { return link.Rates(f.linkInput(n, nil)) }

// Wires returns how a node's interfaces are connected.
func Wires(n *vnode.Node, f Facts) []link.Wire { return link.Wires(f.linkInput(n, nil)) }

// NAT returns the names and files of mode nat.
func NAT(l layout.Layout, siteID string) nat.Places {
	lib, run := l.NAT()
	return nat.Places{Bridge: l.NATBridge(), Lib: lib, Run: run, Forward: l.Forwarding(), Lock: l.HostLock(), SiteID: siteID}
}

// LinkInput returns the input of package link for a node's interfaces, which have these MACs.
func LinkInput(n *vnode.Node, f Facts, macs map[string]mac.Address) link.Input {
	in := f.linkInput(n, nil)
	in.MACs = macs
	return in
}

func (f *Facts) linkInput(n *vnode.Node, claims []step.Step) link.Input {
	dirs := f.Layout.Node(n.Name)
	return link.Input{
		Node: n.Name, Hostname: n.Host(), Networks: n.Network, Machine: n.IsMachine(), Priority: n.Standing().NetPriority, SiteID: f.SiteID,
		MACDir: f.Layout.MACs(), PoolDir: f.Layout.Pools(), AddressDir: f.Layout.Addresses(), HostLock: f.Layout.HostLock(),
		VLANs: f.Layout.VLANs(), Leases: sriov.Leases(f.Layout.VFLeases()), Run: dirs.Run, Bridge: f.Layout.Bridge(), Hub: netif.Hub(f.Layout.Hub()),
		NS: netif.NS{Pin: dirs.NetNS(), PIDFile: dirs.PIDFile()}, MACs: link.MACs(claims), Facts: f.Links,
		NAT: NAT(f.Layout, f.SiteID), Given: link.GivenBy(claims), Site: f.Agent,
	}
}
