package link

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"berth/internal/host/membership"
	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/network/nat"
	"berth/internal/network/sriov"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// defaultMTU is Ethernet's MTU, in bytes.
const defaultMTU = 1500

// Input has what Claims and Live need to make their steps.
type Input struct {
	Node       string
	Hostname   string                 // host name in the node
	Networks   []vnode.Network        // valid, with defaults filled in
	Machine    bool                   // the node is a machine: see Adapters
	Priority   vnode.Priority         // default for networks without a priority: that of the node's class
	SiteID     string                 // derived MACs depend on it
	MACDir     string                 // index of MACs in use
	PoolDir    string                 // MAC pools
	AddressDir string                 // index of addresses in use on the host-only bridge
	HostLock   string                 // file of the host-wide lock
	VLANs      string                 // the host's index of users of VLAN devices
	Leases     sriov.Leases           // the host's index of virtual functions in use
	Run        string                 // the node's live folder
	Bridge     string                 // name of the host-only bridge
	NAT        nat.Places             // of mode nat
	Given      Given                  // by interface: see GivenBy
	Hub        netif.Hub              // namespace of the host-only bridge
	NS         netif.NS               // where the node's network namespace will be
	MACs       map[string]mac.Address // by interface: see MACs
	Site       *membership.Agent      // with which MACs are claimed; nil on a host that is alone
	Facts      Facts                  // see ReadFacts
}

// Live returns the steps that give a running node its interfaces, in order. It refuses what this host cannot do: a
// parent that does not exist (NotFound), is of the wrong kind or is in use (Cannot). The error names an alternative.
func Live(in Input) ([]step.Step, error) {
	if err := in.checkMACs(); err != nil {
		return nil, err
	}
	var shared, pins, steps []step.Step
	for i, n := range in.Networks {
		if err := in.check(i); err != nil {
			return nil, err
		}
		if n.DHCP || n.Mode == vnode.Phys || n.Mode == vnode.SRIOV {
			pins = []step.Step{&netif.Pin{NS: in.NS}}
		}
		inside := netif.Inside{NS: in.NS, If: n.Name}
		own, mtu := in.MACs[n.Name], in.mtu(n)
		switch n.Mode {
		case vnode.None:
			continue
		case vnode.Bridge:
			v := &Veth{
				Inside: inside, Node: in.Node, MAC: own, MTU: mtu, HostMTU: mtu, Lock: in.HostLock,
				Bridge: n.Parent, HostIf: hostName(in.Bridge, in.Node, n.Name),
			}
			if v.Own = n.Parent == ""; v.Own {
				v.Bridge, v.Hub = in.Bridge, in.Hub
				if !slices.ContainsFunc(shared, func(s step.Step) bool { return s.Kind() == "link.bridge" }) {
					shared = append(shared, &Bridge{Lock: in.HostLock, Name: in.Bridge, Hub: in.Hub})
				}
			} else {
				v.HostMTU, v.VLAN = in.Facts.Links[n.Parent].MTU, n.VLAN
			}
			steps = append(steps, v)
		case vnode.NAT:
			b, v := in.natBridge(n, inside)
			shared, steps = append(shared, b), append(steps, v)
			n = in.addressed(n)
		case vnode.Macvlan:
			m := &Macvlan{Inside: inside, MAC: own, MTU: mtu, Parent: n.Parent, Temp: hostName(in.Bridge, in.Node, n.Name)}
			if n.VLAN != 0 {
				v := &VLAN{
					Node: in.Node, If: n.Name, Parent: n.Parent, ID: n.VLAN, Device: cmp.Or(in.Facts.vlan(n), vlanDevice(n.Parent, n.VLAN)),
					Users: in.VLANs, User: m.Temp, Lock: in.HostLock,
				}
				m.Parent = v.Device
				steps = append(steps, v)
			}
			steps = append(steps, m)
		case vnode.Phys:
			steps = append(steps, &Phys{Inside: inside, Parent: n.Parent, MAC: own, MTU: n.MTU, Lock: in.HostLock, Leases: in.Leases})
		case vnode.SRIOV:
			claimed := sriov.Claimed{Leases: in.Leases, Owner: sriov.Owner{Node: in.Node, If: n.Name, Run: in.Run}}
			steps = append(steps,
				&sriov.Claim{Leases: in.Leases, Lock: in.HostLock, Owner: claimed.Owner, PF: n.Parent},
				&sriov.Configure{Claimed: claimed, PF: n.Parent, MAC: own, VLAN: n.VLAN},
				&sriov.Move{Inside: inside, Claimed: claimed, MAC: own, MTU: mtu})
		}
		if err := leastOf6(n, mtu); err != nil {
			return nil, err
		}
		if in.Machine {
			steps = append(steps, &Tap{Inside: inside, Tap: tapName(i), MTU: mtu})
		}
		spoof := in.antiSpoof(n)
		if spoof != nil { // before the rates: their ingress qdisc could not carry its filter; its clsact carries theirs
			steps = append(steps, spoof)
		}
		rates, err := in.rates(n)
		if err != nil {
			return nil, err
		}
		for _, r := range rates {
			steps = append(steps, r)
		}
		p, err := in.priority(n)
		if err != nil {
			return nil, err
		}
		if p != nil {
			steps = append(steps, p)
		}
		announce := in.announcement(n)
		if p := in.probe(n, own); p != nil {
			steps = append(steps, p)
			announce.Adapter = false // the probe has waited for its carrier
		}
		routes, _ := byFamily(n)
		steps = append(steps, &address.Configure{
			Inside: inside, MAC: own, MTU: mtu, Address: n.Address, Gateway: n.Gateway, Routes: routes, Announce: announce, Guest: in.Machine,
		})
		if p := in.publish(n); p != nil {
			steps = append(steps, p)
		}
		if d := in.lease(i); d != nil {
			d.Check, d.Announce = spoof, announce
			steps = append(steps, d)
		}
	}
	return slices.Concat(shared, pins, steps), nil
}

// leastOf6 refuses an IPv6 address on an interface whose MTU is below IPv6's least (RFC 8200): the kernel has no IPv6 there. The spec's own
// mtu and addresses are compared before (vnode.Validate); here are those of the parent and of mode nat, too.
func leastOf6(n vnode.Network, mtu int) error {
	const least = 1280
	for _, a := range n.Address {
		if p, err := netip.ParsePrefix(a); err == nil && p.Addr().Is6() && mtu > 0 && mtu < least {
			return refuse.Cannotf(fmt.Sprintf("ask for an mtu of %d or more, or for IPv4 addresses alone (mode bridge or macvlan), or raise the parent's", least),
				"network %s: mtu %d is too small for the IPv6 address %s: at least %d", n.Name, mtu, a, least)
		}
	}
	return nil
}

// mtu returns the MTU of an interface: the requested one, else its parent's, in bytes.
func (in *Input) mtu(n vnode.Network) int {
	switch {
	case n.MTU != 0:
		return n.MTU
	case n.Parent != "":
		return in.Facts.Links[in.on(n)].MTU
	}
	return defaultMTU
}

// on returns the link of the host that an interface will be on, as far as it exists: the parent, or a macvlan's VLAN device.
func (in *Input) on(n vnode.Network) string {
	if n.Mode == vnode.Macvlan && n.VLAN != 0 {
		return cmp.Or(in.Facts.vlan(n), n.Parent)
	}
	return n.Parent
}

// check refuses the network of index i if this host lacks what the network needs.
func (in *Input) check(i int) error {
	n := in.Networks[i]
	if n.Mode == vnode.None {
		return nil
	}
	if in.MACs[n.Name].IsZero() && n.Mode != vnode.Phys {
		return refuse.Invalidf("network %s: no MAC was claimed for it", n.Name)
	}
	if n.Mode == vnode.NAT {
		return in.checkNAT(n)
	}
	if n.Parent == "" {
		return nil
	}
	parent, ok := in.Facts.Links[n.Parent]
	if !ok {
		return refuse.NotFoundf("network %s: no link %s on this host; there are %s", n.Name, n.Parent, in.parents(n.Mode))
	}
	switch n.Mode {
	case vnode.Bridge:
		if parent.Type != "bridge" {
			return refuse.Cannotf("use mode macvlan on it, or leave parent out for a host-only bridge; bridges of this host: "+in.parents(n.Mode),
				"network %s: parent %s is not a bridge (%s)", n.Name, n.Parent, parent.Type)
		}
		if n.VLAN != 0 && !parent.Filters {
			return refuse.Cannotf("use mode macvlan on it; or ip link set "+n.Parent+" type bridge vlan_filtering 1, where the host's administrator wants "+
				"that (CONFIG_BRIDGE_VLAN_FILTERING)", "network %s: vlan %d: bridge %s does not filter VLANs", n.Name, n.VLAN, n.Parent)
		}
		if in.others(n) >= mostPorts {
			return fullBridge(n.Name, n.Parent)
		}
	case vnode.Macvlan:
		if err := in.checkMacvlan(n, parent); err != nil {
			return err
		}
	case vnode.SRIOV:
		if err := in.checkSRIOV(n, parent); err != nil {
			return err
		}
	case vnode.Phys:
		return in.checkPhys(i, parent)
	}
	if most := in.Facts.Links[in.on(n)].MTU; n.MTU > most {
		return refuse.Cannotf("ask for less, or raise the parent's", "network %s: mtu %d is more than the %d of its parent %s", n.Name, n.MTU, most, in.on(n))
	}
	return nil
}

// others counts the ports of a network's bridge, without the one that the network may have already.
func (in *Input) others(n vnode.Network) int {
	ports, own := 0, hostName(in.Bridge, in.Node, n.Name)
	for name, l := range in.Facts.Links {
		if l.Master == n.Parent && name != own {
			ports++
		}
	}
	return ports
}

func (in *Input) checkMacvlan(n vnode.Network, parent HostLink) error {
	switch {
	case parent.Loopback:
		return refuse.Cannotf("name one of "+in.parents(n.Mode), "network %s: macvlan on the loopback interface", n.Name)
	case parent.Master != "":
		return refuse.Cannotf("use mode bridge with parent "+parent.Master, "network %s: %s is a port of %s", n.Name, n.Parent, parent.Master)
	case parent.Adapter != "":
		return refuse.Cannotf("use mode sriov with parent "+parent.Adapter, "network %s: %s is a virtual function of %s: its spoof check drops what has another MAC than its own, as all of a macvlan has", n.Name, n.Parent, parent.Adapter)
	case !parent.Up:
		return refuse.Cannotf("ip link set "+n.Parent+" up", "network %s: parent %s is down", n.Name, n.Parent)
	}
	if n.VLAN == 0 {
		return nil
	}
	device := in.Facts.vlan(n)
	switch {
	case device == "" && in.Facts.LacksVLAN != "":
		return refuse.Cannotf("use a kernel with the module 8021q (Debian, Ubuntu: package linux-modules-extra or linux-image), or leave vlan out",
			"network %s: vlan %d: this kernel cannot: %s", n.Name, n.VLAN, in.Facts.LacksVLAN)
	case device != "" && !in.Facts.Links[device].Up:
		return refuse.Cannotf("ip link set "+device+" up", "network %s: %s, VLAN %d of %s, is down", n.Name, device, n.VLAN, n.Parent)
	case device != "" && in.Facts.Links[device].Master != "":
		return refuse.Cannotf("use mode bridge with parent "+in.Facts.Links[device].Master, "network %s: %s, VLAN %d of %s, is a port of %s", n.Name, device, n.VLAN, n.Parent, in.Facts.Links[device].Master)
	}
	return nil
}

// checkSRIOV refuses an adapter that has too few free virtual functions for the node's networks.
func (in *Input) checkSRIOV(n vnode.Network, parent HostLink) error {
	vfs := parent.VFs
	switch {
	case vfs == nil:
		return refuse.Cannotf("name one that has it ("+in.parents(n.Mode)+"), or use mode macvlan", "network %s: adapter %s has no SR-IOV", n.Name, n.Parent)
	case len(vfs.Uses) == 0:
		return refuse.Cannotf(fmt.Sprintf("berth vf enable %s N (it can have %d)", n.Parent, vfs.Total), "network %s: adapter %s has no virtual functions now", n.Name, n.Parent)
	case !parent.Up:
		return refuse.Cannotf("ip link set "+n.Parent+" up", "network %s: adapter %s is down, and its virtual functions with it", n.Name, n.Parent)
	}
	wanted, free := 0, 0
	for _, o := range in.Networks {
		if o.Mode == vnode.SRIOV && o.Parent == n.Parent {
			wanted++
		}
	}
	var users []string
	for _, u := range vfs.Uses {
		if u.User == "" || u.Run == in.Run && in.Run != "" { // the node's present functions are free when it starts again
			free++
		} else {
			users = append(users, u.User)
		}
	}
	if free < wanted {
		return refuse.Busyf("network %s: no free virtual function on %s: %d wanted, %d free of %d; in use by %s",
			n.Name, n.Parent, wanted, free, len(vfs.Uses), strings.Join(users, ", "))
	}
	return nil
}

// checkPhys refuses a link that the host needs: lending takes the whole link and would destroy the links built on it.
func (in *Input) checkPhys(i int, parent HostLink) error {
	n := in.Networks[i]
	twice := func(o vnode.Network) bool { return o.Parent == n.Parent }
	switch {
	case slices.ContainsFunc(in.Networks[:i], twice) || slices.ContainsFunc(in.Networks[i+1:], twice):
		return refuse.Invalidf("network %s: link %s is lent whole and cannot be the parent of another network too", n.Name, n.Parent)
	case parent.Loopback || parent.Type == "bridge":
		return refuse.Cannotf("name one of "+in.parents(n.Mode), "network %s: %s cannot leave the host", n.Name, n.Parent)
	case parent.DefaultRoute:
		return refuse.Cannotf("use mode macvlan on it, or lend another link", "network %s: %s carries the host's default route", n.Name, n.Parent)
	case parent.Master != "":
		return refuse.Cannotf("take it out of there first, or use mode bridge", "network %s: %s is a port of %s", n.Name, n.Parent, parent.Master)
	case len(parent.Uppers) > 0:
		return refuse.Cannotf("remove them first, or use mode macvlan", "network %s: %s has links on top of it: %s", n.Name, n.Parent, strings.Join(parent.Uppers, ", "))
	}
	others := slices.DeleteFunc(slices.Clone(parent.Macvlans), func(on mac.Address) bool { // not the node's own, of an earlier mode
		return slices.Contains(slices.Collect(maps.Values(in.MACs)), on)
	})
	if len(others) > 0 {
		return refuse.Cannotf("stop those first (berth net export tells the nodes' MACs), or use mode macvlan", "network %s: nodes or containers have macvlans on %s: %s", n.Name, n.Parent, mac.List(others))
	}
	return nil
}

// parents lists the host's links that can be the parent of a network in this mode.
func (in *Input) parents(mode vnode.Mode) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(in.Facts.Links)) {
		l := in.Facts.Links[name]
		isBridge := l.Type == "bridge"
		if mode == vnode.SRIOV && l.VFs == nil {
			continue
		}
		if (mode == vnode.Bridge) == isBridge && !l.Loopback && !strings.HasPrefix(name, netif.PortPrefix) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
