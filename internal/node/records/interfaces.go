package records

import (
	"fmt"
	"net/netip"
	"os"
	"slices"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/network/link"
	"berth/internal/node/inspect"
	"berth/internal/node/plan"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Row is an interface of a node, as a managed network must know it beforehand.
type Row struct {
	Node      string      `json:"node"`
	Hostname  string      `json:"hostname"`
	Interface string      `json:"interface"`
	Mode      string      `json:"mode"`
	Parent    string      `json:"parent,omitempty"`
	MAC       mac.Address `json:"mac"` // "" of a lent adapter that is not there
	Address   []string    `json:"addresses,omitempty"`
	Exists    bool        `json:"exists"` // else the row has what the node would get if it were made now
}

// Leased returns the address that an interface of a node has by a lease now.
func (r Nodes) Leased(node, ifname string) (address netip.Prefix, ok bool) {
	return inspect.Leased(r.Layout, node, ifname)
}

// Addresses returns the addresses that a node has by its spec and by its leases.
func (r Nodes) Addresses(n *vnode.Node) []string { return inspect.Addresses(r.Layout, n) }

// Table returns the interfaces of the nodes that exist and of those of specs, in this order. For a node that is not made yet, a
// row has what the node would claim.
func (r Nodes) Table(specs []*vnode.Node) ([]Row, error) {
	if os.Geteuid() != 0 {
		return nil, refuse.Cannotf("run berth as root", "only root sees the nodes")
	}
	if err := r.Layout.Make(); err != nil {
		return nil, err
	}
	f := plan.Facts{Layout: r.Layout}
	var err error
	if f.SiteID, err = address.SiteID(r.Layout); err != nil {
		return nil, err
	}
	existing, err := r.Specs()
	if err != nil {
		return nil, err
	}
	exists := map[string]bool{}
	all := []*vnode.Node{}
	for _, n := range existing {
		exists[n.Name] = true
		if !slices.ContainsFunc(specs, func(s *vnode.Node) bool { return s.Name == n.Name }) {
			all = append(all, n)
		}
	}
	var rows []Row
	taken := map[mac.Address]string{}
	for _, n := range append(all, specs...) {
		macs, err := link.ChooseMACs(plan.LinkInput(n, f, nil), taken) // for a node that exists: those that it has
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		for _, nw := range n.Network {
			if nw.Mode == vnode.None {
				continue
			}
			own := macs[nw.Name]
			if own.IsZero() {
				own = r.lentMAC(n.Name, nw)
			}
			rows = append(rows, Row{
				Node: n.Name, Hostname: n.Host(), Interface: nw.Name, Mode: string(nw.Mode), Parent: nw.Parent,
				MAC: own, Address: link.Addresses(n.Name, nw, plan.NAT(r.Layout, "")), Exists: exists[n.Name],
			})
		}
	}
	return rows, nil
}

// lentMAC is the MAC of an adapter that is lent to a node, or will be: it is in the node's network namespace while the
// node has it, else on the host.
func (r Nodes) lentMAC(node string, nw vnode.Network) mac.Address {
	if st, err := netif.Read(netif.NS{Pin: r.Layout.Node(node).NetNS()}, nw.Name); err == nil {
		return st.MAC
	}
	return netif.MACOf(nw.Parent)
}
