package link

import (
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/nat"
	"berth/internal/network/shape"
	"berth/internal/network/sriov"
	"berth/internal/spec/vnode"
	"berth/internal/sys/file"
	"berth/internal/sys/mac"
)

// Facts are the facts about the host's links and kernel that a plan needs.
type Facts struct {
	Links   map[string]HostLink    // by name; nil if no network of the node names a parent
	Pooled  map[string]mac.Address // by interface: the MAC that it would get from its pool: see ReadClaims
	Claimed map[string]mac.Address // by interface: the MAC that it has claimed; not read if the node runs
	Clashes map[string]string      // by interface: what else has the MAC that it has claimed
	Lacks   map[netif.Way]string   // by way to limit a rate: why this kernel cannot, for the ways that the node needs

	NAT nat.Facts // of mode nat: see ReadClaims

	list []netlink.Link // all links of the host; nil if they were not read

	LacksVLAN     string // why this kernel makes no VLAN devices; only tested if one is to be made
	LacksPriority string // why this kernel cannot set packet priorities; only tested if a queue would honour them
}

// HostLink is a link of the host.
type HostLink struct {
	Type         string        // bridge, veth, macvlan …; device: an adapter, or loopback
	MTU          int           // bytes
	Up           bool          // administratively up, with or without a carrier
	Loopback     bool          //
	Filters      bool          // a bridge that keeps VLANs apart
	VLAN         int           // id of a VLAN device
	Lower        string        // link of the host that a VLAN device is on
	Master       string        // bridge or bond whose port it is
	Uppers       []string      // links of the host made on top of it: macvlan, VLAN …
	Macvlans     []mac.Address // MACs of links on it in any namespace: see netif.Macvlans; only read if a link shall be lent
	Adapter      string        // adapter of a virtual function; only read for macvlan
	Speed        vnode.BitRate // of an adapter; 0 if unknown, for example without a cable
	DefaultRoute bool          // it carries a default route; only read if a link shall be lent
	VFs          *HostVFs      // of an adapter with SR-IOV; only read if a virtual function is wanted
	Queue        string        // queues behind it that honour priorities: "pfifo_fast on eth0"; only read if a priority is wanted
}

// HostVFs are an adapter's virtual functions.
type HostVFs struct {
	Total int     // the most that it can have
	Uses  []VFUse // one for each that it has
}

// VFUse names the user of a virtual function.
type VFUse struct {
	User string // "" if it is free
	Run  string // live folder of the node that has it; "" if no node has
}

// ReadFacts reads the facts that a plan for these networks needs: all links if a network names a parent, and what the
// kernel lacks for rates if a network has a rate. class is the priority of networks without one of their own.
func ReadFacts(nets []vnode.Network, class vnode.Priority, leases sriov.Leases) (Facts, error) {
	f, err := readLinks(nets, leases)
	if err != nil {
		return f, err
	}
	if err := f.readQueues(nets, class); err != nil {
		return f, err
	}
	ways := map[netif.Way]bool{}
	for _, n := range nets {
		if n.Rate.TX != 0 {
			ways[netif.Egress] = true
		}
		if n.Rate.RX != 0 {
			ways[receiveWay(n.Mode)] = true
		}
	}
	if len(ways) > 0 {
		f.Lacks, err = shape.ProbeRates(ways)
	}
	return f, err
}

func readLinks(nets []vnode.Network, leases sriov.Leases) (Facts, error) {
	if !slices.ContainsFunc(nets, func(n vnode.Network) bool { return n.Parent != "" }) {
		return Facts{}, nil
	}
	h, err := netif.Host()
	if err != nil {
		return Facts{}, err
	}
	defer h.Close()
	links, err := netif.List(h)
	if err != nil {
		return Facts{}, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	asks := func(m vnode.Mode) bool {
		return slices.ContainsFunc(nets, func(n vnode.Network) bool { return n.Mode == m })
	}
	f, on := Facts{Links: map[string]HostLink{}, list: links}, netif.Uppers(links)
	for _, l := range links {
		a := l.Attrs()
		link := HostLink{
			Type: l.Type(), MTU: a.MTU, Up: netif.IsUp(l), Loopback: netif.IsLoopback(l), Master: names[a.MasterIndex], Speed: speed(l), Uppers: on[a.Index],
		}
		if asks(vnode.Macvlan) && a.ParentDevBus == "pci" {
			link.Adapter = sriov.Adapter(sriov.Sys, a.ParentDev)
		}
		if link.Filters, link.VLAN = filters(l), vlanID(l); link.VLAN != 0 {
			link.Lower = names[netif.Lower(l)]
		}
		f.Links[a.Name] = link
	}
	if slices.ContainsFunc(nets, func(n vnode.Network) bool { return n.Mode == vnode.Macvlan && n.VLAN != 0 && f.vlan(n) == "" }) {
		f.LacksVLAN = probeVLAN(h)
	}
	if asks(vnode.Phys) {
		routes, err := netif.DefaultRoutes(h)
		if err != nil {
			return Facts{}, err
		}
		lent := map[int]bool{}
		for index, name := range names {
			lent[index] = slices.ContainsFunc(nets, func(n vnode.Network) bool { return n.Mode == vnode.Phys && n.Parent == name })
		}
		others, err := netif.LastingMacvlans(h, lent)
		if err != nil {
			return Facts{}, err
		}
		for index, name := range names {
			l := f.Links[name]
			l.DefaultRoute, l.Macvlans = routes[index], others[index]
			f.Links[name] = l
		}
	}
	if asks(vnode.SRIOV) {
		return f, readVFs(h, leases, f)
	}
	return f, nil
}

// vlan returns the VLAN device of the host for a network; "" if there is none yet.
func (f *Facts) vlan(n vnode.Network) string {
	for name, l := range f.Links {
		if l.VLAN == n.VLAN && l.Lower == n.Parent {
			return name
		}
	}
	return ""
}

// readVFs sets VFs of the adapters in f.Links.
func readVFs(h *netlink.Handle, leases sriov.Leases, f Facts) error {
	adapters, err := sriov.List(sriov.Sys)
	if err != nil {
		return err
	}
	users, err := sriov.NewUsers(h, leases, f.list)
	if err != nil {
		return err
	}
	for _, pf := range adapters {
		l, ok := f.Links[pf.Name]
		if !ok {
			continue
		}
		l.VFs = &HostVFs{Total: pf.Total}
		for _, vf := range pf.VFs {
			user, err := users.Of(vf)
			if err != nil {
				return err
			}
			lease, _ := leases.Read(vf.PCI)
			l.VFs.Uses = append(l.VFs.Uses, VFUse{User: user, Run: lease.Run})
		}
		f.Links[pf.Name] = l
	}
	return nil
}

// speed returns the speed of an adapter, 0 if unknown. The speed of a virtual link is not real and is not read.
func speed(l netlink.Link) vnode.BitRate {
	if l.Attrs().ParentDev == "" {
		return 0
	}
	mbit, err := strconv.ParseInt(file.Text("/sys/class/net/"+l.Attrs().Name+"/speed"), 10, 32)
	if err != nil || mbit <= 0 {
		return 0
	}
	return vnode.BitRate(mbit) * 1_000_000
}
