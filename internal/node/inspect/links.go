// Package inspect reads from the kernel what a node has of its host now: interfaces and their leases, devices and disks, limits,
// mounts that others can reach.
package inspect

import (
	"cmp"
	"net/netip"
	"time"

	"berth/internal/host/netif"
	"berth/internal/network/dhcp"
	"berth/internal/network/link"
	"berth/internal/network/sriov"
	"berth/internal/node/plan"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/layout"
	"berth/internal/sys/mac"
	"berth/internal/sys/proof"
)

// Within describes the inside of a node: its users, and the file systems mounted in it.
type Within struct {
	User    string           `json:"user"`            // as the spec or the image names it
	Users   []vnode.IDExtent `json:"users,omitempty"` // the ids that it has besides its own 0 to 65535
	Mounts  []vnode.Mount    `json:"mounts,omitempty"`
	Tmpfs   []vnode.Tmpfs    `json:"tmpfs,omitempty"`
	Exposed []Exposed        `json:"exposed,omitempty"`
}

// Inside describes the inside of a node. imageUser is the user that the image names for its command ("": root).
func Inside(n *vnode.Node, imageUser string) Within {
	return Within{User: cmp.Or(n.User, imageUser, "root"), Users: n.Users, Mounts: n.Mounts, Tmpfs: n.Tmpfs, Exposed: exposed(n)}
}

// Exposed is a mount whose source the host's users can reach: a file that the node leaves there may give them root's rights.
type Exposed struct {
	Source string `json:"source"`
	Target string `json:"target"`
	Why    string `json:"why"`
}

// exposed lists the mounts of a node that are exposed now. A source that cannot be looked at is none.
func exposed(n *vnode.Node) (all []Exposed) {
	for _, m := range n.Mounts {
		if why, err := gateway.Exposed(m, n.UserNS()); err == nil && why != "" {
			all = append(all, Exposed{Source: m.Source, Target: m.Target, Why: why})
		}
	}
	return all
}

// Link is one interface, as the kernel has it while the node runs.
type Link struct {
	Mode string `json:"mode"`
	netif.State
	Ports []string `json:"ports,omitempty"` // of the host that lead to it
	Lease *Lease   `json:"lease,omitempty"` // its lease, with DHCP
	Spoof *Spoof   `json:"spoof,omitempty"`
}

// Links tells of a node's interfaces, whose MACs are claimed.
func Links(l layout.Layout, n *vnode.Node, macs map[string]mac.Address, running bool) []Link {
	var all []Link
	for _, nw := range n.Network {
		if nw.Mode == vnode.None {
			continue
		}
		d := Link{Mode: string(nw.Mode), State: netif.State{Name: nw.Name, MAC: macs[nw.Name], MTU: nw.MTU, Address: link.Addresses(n.Name, nw, plan.NAT(l, ""))}, Ports: nw.Ports}
		if running {
			dirs := l.Node(n.Name)
			if st, err := netif.Read(netif.NS{Pin: dirs.NetNS(), PIDFile: dirs.PIDFile()}, nw.Name); err == nil {
				if n.IsMachine() { // the guest has them
					st.Address = d.Address
				}
				d.State = st
			}
			if nw.DHCP {
				d.Lease = lease(l, n.Name, nw.Name)
			}
		}
		d.Spoof = spoof(l, n, macs, nw, running)
		all = append(all, d)
	}
	return all
}

// Lease is the DHCP lease of an interface.
type Lease struct {
	Server string    `json:"server,omitempty"`
	Ends   time.Time `json:"ends,omitzero"` // absent: never
}

func leaseOf(at layout.Layout, node, ifname string) dhcp.Lease {
	return dhcp.ReadLease(dhcp.LeaseFile(at.Node(node).Run, ifname))
}

// lease tells of an interface's lease; nil if it has none.
func lease(at layout.Layout, node, ifname string) *Lease {
	now := dhcp.Now()
	l := leaseOf(at, node, ifname)
	if l.State(now) == dhcp.Ended {
		return nil
	}
	d := &Lease{}
	if l.Server.IsValid() {
		d.Server = l.Server.String()
	}
	if left := l.Left(now); left != dhcp.Forever {
		d.Ends = time.Now().Add(time.Duration(left) * time.Second).Round(time.Second)
	}
	return d
}

// Leased is the address that an interface of a node has by a lease now.
func Leased(at layout.Layout, node, ifname string) (address netip.Prefix, ok bool) {
	l := leaseOf(at, node, ifname)
	return l.Address, l.State(dhcp.Now()) != dhcp.Ended
}

// Addresses are those that a node has by its spec and by its leases.
func Addresses(at layout.Layout, n *vnode.Node) []string {
	var all []string
	for _, nw := range n.Network {
		if nw.DHCP {
			if a, ok := Leased(at, n.Name, nw.Name); ok {
				all = append(all, a.String())
			}
		}
		all = append(all, link.Addresses(n.Name, nw, plan.NAT(at, ""))...)
	}
	return all
}

// Spoof says what limits an interface to its own addresses.
type Spoof struct {
	Refused bool   `json:"refused"`           // false: the spec allows it
	Program string `json:"program,omitempty"` // tag of the kernel's program, while the node runs
	Holds   bool   `json:"holds"`             // it is the program that should be there
}

func spoof(l layout.Layout, n *vnode.Node, macs map[string]mac.Address, nw vnode.Network, running bool) *Spoof {
	d := &Spoof{Refused: !nw.Spoof}
	if running && d.Refused {
		d.Program, d.Holds, _ = link.SpoofCheck(plan.LinkInput(n, plan.Facts{Layout: l}, macs), nw.Name) // without an answer it does not hold
	}
	return d
}

// Priorities says which of a node's packets are sent first.
func Priorities(l layout.Layout, n *vnode.Node, running bool) (all []proof.Limit, err error) {
	f := plan.Facts{Layout: l}
	if f.Links, err = link.ReadFacts(n.Network, n.Standing().NetPriority, sriov.Leases(l.VFLeases())); err != nil {
		return nil, err
	}
	return link.ShowPriorities(plan.LinkInput(n, f, nil), running), nil
}
