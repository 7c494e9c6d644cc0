package link

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/internal/refuse"
	"berth/internal/sriov"
	"berth/internal/step"
	"berth/internal/vnode"
)

// defaultMTU is Ethernet's MTU, in bytes.
const defaultMTU = 1500

// Input is what Claims and Live need to make their steps.
type Input struct {
	Node       string
	Hostname   string            // host name in the node
	Networks   []vnode.Network   // valid, with defaults filled in
	Priority   vnode.Priority    // default for networks without a priority: that of the node's class
	SiteID     string            // derived MACs depend on it
	MACDir     string            // index of MACs in use
	PoolDir    string            // MAC pools
	AddressDir string            // index of addresses in use on the host-only bridge
	HostLock   string            // file of the host-wide lock
	Leases     sriov.Leases      // the host's index of virtual functions in use
	Run        string            // the node's live folder
	Bridge     string            // name of the host-only bridge
	Hub        Hub               // namespace of the host-only bridge
	NS         NS                // where the node's network namespace will be
	MACs       map[string]string // by interface: see MACs
	Facts      Facts             // see ReadFacts
}

// Live returns the steps that give a running node its interfaces, in order. It refuses what this host cannot do: a
// parent that does not exist (NotFound), is of the wrong kind or is in use (Cannot). The error names an alternative.
func Live(in Input) ([]step.Step, error) {
	var shared, pins, steps []step.Step
	for i, n := range in.Networks {
		if err := in.check(i); err != nil {
			return nil, err
		}
		if n.DHCP || n.Mode == vnode.Phys || n.Mode == vnode.SRIOV {
			pins = []step.Step{&Pin{NS: in.NS}}
		}
		inside := Inside{NS: in.NS, If: n.Name}
		mac, mtu := in.MACs[n.Name], in.mtu(n)
		switch n.Mode {
		case vnode.None:
			continue
		case vnode.Bridge:
			v := &Veth{
				Inside: inside, Node: in.Node, MAC: mac, MTU: mtu, HostMTU: mtu, Lock: in.HostLock,
				Bridge: n.Parent, HostIf: hostName(in.Bridge, in.Node, n.Name),
			}
			if v.Own = n.Parent == ""; v.Own {
				v.Bridge, v.Hub = in.Bridge, in.Hub
				shared = []step.Step{&Bridge{Lock: in.HostLock, Name: in.Bridge, Hub: in.Hub}}
			} else {
				v.HostMTU = in.Facts.Links[n.Parent].MTU
			}
			steps = append(steps, v)
		case vnode.Macvlan:
			steps = append(steps, &Macvlan{Inside: inside, MAC: mac, MTU: mtu, Parent: n.Parent, Temp: hostName(in.Bridge, in.Node, n.Name)})
		case vnode.Phys:
			steps = append(steps, &Phys{Inside: inside, Parent: n.Parent, MAC: mac, MTU: n.MTU, Lock: in.HostLock, Leases: in.Leases})
		case vnode.SRIOV:
			claimed := Claimed{Leases: in.Leases, Owner: sriov.Owner{Node: in.Node, If: n.Name, Run: in.Run}}
			steps = append(steps,
				&VFClaim{Leases: in.Leases, Lock: in.HostLock, Owner: claimed.Owner, PF: n.Parent},
				&VFConfigure{Claimed: claimed, PF: n.Parent, MAC: mac, VLAN: n.VLAN},
				&VFMove{Inside: inside, Claimed: claimed, MAC: mac, MTU: mtu})
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
		if p := in.probe(n, mac); p != nil {
			steps = append(steps, p)
		}
		routes, _ := byFamily(n)
		steps = append(steps, &Configure{Inside: inside, MAC: mac, MTU: mtu, Address: n.Address, Gateway: n.Gateway, Routes: routes})
		if d := in.lease(i); d != nil {
			d.Check = spoof
			steps = append(steps, d)
		}
	}
	return slices.Concat(shared, pins, steps), nil
}

// mtu returns the MTU of an interface: the requested one, else its parent's, in bytes.
func (in *Input) mtu(n vnode.Network) int {
	switch {
	case n.MTU != 0:
		return n.MTU
	case n.Parent != "":
		return in.Facts.Links[n.Parent].MTU
	}
	return defaultMTU
}

// Unsupported refuses (Cannot) networks that this version of Berth does not support.
func Unsupported(nets []vnode.Network) error {
	for _, n := range nets {
		if err := unsupported(n); err != nil {
			return err
		}
	}
	return nil
}

func unsupported(n vnode.Network) error {
	const remedy = "this version of Berth does not do it yet"
	switch {
	case n.VLAN != 0 && n.Mode != vnode.SRIOV:
		return refuse.Cannotf(remedy+": make a VLAN interface on the host and name it as parent, or use mode sriov", "network %s: vlan %d", n.Name, n.VLAN)
	}
	return nil
}

// check refuses the network of index i if this host lacks what the network needs.
func (in *Input) check(i int) error {
	n := in.Networks[i]
	if err := unsupported(n); err != nil || n.Mode == vnode.None {
		return err
	}
	if in.MACs[n.Name] == "" && n.Mode != vnode.Phys {
		return refuse.Invalidf("network %s: no MAC was claimed for it", n.Name)
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
	if n.MTU > parent.MTU {
		return refuse.Cannotf("ask for less, or raise the parent's", "network %s: mtu %d is more than the %d of its parent %s", n.Name, n.MTU, parent.MTU, n.Parent)
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
	others := slices.DeleteFunc(slices.Clone(parent.Guests), func(mac string) bool { // not the node's own, of an earlier mode
		return slices.Contains(slices.Collect(maps.Values(in.MACs)), mac)
	})
	if len(others) > 0 {
		return refuse.Cannotf("stop those first (berth net export tells the nodes' MACs), or use mode macvlan", "network %s: nodes or containers have macvlans on %s: %s", n.Name, n.Parent, strings.Join(others, ", "))
	}
	return nil
}

// checkRate refuses a rate that the kernel or the link cannot provide.
func (in *Input) checkRate(n vnode.Network, r *Rate) error {
	link := in.Facts.Links[n.Parent].Speed
	switch lacks := in.Facts.Lacks[r.Way]; {
	case lacks != "":
		return refuse.Cannotf(shapingRemedy, "%s: this kernel cannot limit it: %s", r.Key, lacks)
	case r.Bits < lowestRate || r.Bits > highestRate:
		return refuse.Cannotf("ask for a rate in between, or "+vnode.Max, "%s %s: the kernel's token bucket holds %s to %s", r.Key, r.Asked, lowestRate, highestRate)
	case link != 0 && r.Bits > link:
		return refuse.Cannotf("ask for less, or for "+vnode.Max, "%s %s is more than the %s of %s", r.Key, r.Asked, link, n.Parent)
	}
	return nil
}

const shapingRemedy = "use a kernel with CONFIG_NET_SCH_TBF, and for rx of macvlan, phys and sriov CONFIG_IFB, CONFIG_NET_SCH_INGRESS, " +
	"CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED (Debian, Ubuntu: package linux-modules-extra or linux-image), or leave the rate out"

// parents lists the host's links that can be the parent of a network in this mode.
func (in *Input) parents(mode vnode.Mode) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(in.Facts.Links)) {
		l := in.Facts.Links[name]
		isBridge := l.Type == "bridge"
		if mode == vnode.SRIOV && l.VFs == nil {
			continue
		}
		if (mode == vnode.Bridge) == isBridge && !l.Loopback && !strings.HasPrefix(name, portPrefix) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
