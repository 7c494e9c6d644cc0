package link

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"berth/internal/sriov"
	"berth/internal/vnode"
)

// Facts are what a plan must know of the host's links and kernel.
type Facts struct {
	Links  map[string]HostLink // by name; nil if no network of the node names a parent
	Pooled map[string]string   // by interface: the MAC that it would get from its pool: see ReadPooled
	Lacks  map[Way]string      // by way to limit a rate: why this kernel cannot, for the ways that the node needs

	list []netlink.Link // all links of the host; nil if they were not read

	LacksPriority string // why this kernel cannot set packet priorities; only tested if a queue would honour them
}

// HostLink is a link of the host.
type HostLink struct {
	Type         string        // bridge, veth, macvlan …; device: an adapter, or loopback
	MTU          int           // bytes
	Up           bool          // administratively up, with or without a carrier
	Loopback     bool          //
	Master       string        // bridge or bond whose port it is
	Uppers       []string      // links of the host made on top of it: macvlan, VLAN …
	Guests       []string      // MACs of links on it in any namespace: see guests; only read if a link shall be lent
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

// VFUse says who uses a virtual function.
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
	ways := map[Way]bool{}
	for _, n := range nets {
		if n.Rate.TX != 0 {
			ways[Egress] = true
		}
		if n.Rate.RX != 0 {
			ways[receiveWay(n.Mode)] = true
		}
	}
	if len(ways) > 0 {
		f.Lacks, err = probeShaping(ways)
	}
	return f, err
}

func readLinks(nets []vnode.Network, leases sriov.Leases) (Facts, error) {
	if !slices.ContainsFunc(nets, func(n vnode.Network) bool { return n.Parent != "" }) {
		return Facts{}, nil
	}
	h, err := host()
	if err != nil {
		return Facts{}, err
	}
	defer h.Close()
	links, err := listLinks(h)
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
	f, on := Facts{Links: map[string]HostLink{}, list: links}, uppers(links)
	for _, l := range links {
		a := l.Attrs()
		link := HostLink{
			Type: l.Type(), MTU: a.MTU, Up: isUp(l), Loopback: isLoopback(l), Master: names[a.MasterIndex], Speed: speed(l), Uppers: on[a.Index],
		}
		if asks(vnode.Macvlan) && a.ParentDevBus == "pci" {
			link.Adapter = sriov.Adapter(sriov.Sys, a.ParentDev)
		}
		f.Links[a.Name] = link
	}
	if asks(vnode.Phys) {
		routes, err := defaultRoutes(h)
		if err != nil {
			return Facts{}, err
		}
		lent := map[int]bool{}
		for index, name := range names {
			lent[index] = slices.ContainsFunc(nets, func(n vnode.Network) bool { return n.Mode == vnode.Phys && n.Parent == name })
		}
		others, err := lastingGuests(h, lent)
		if err != nil {
			return Facts{}, err
		}
		for index, name := range names {
			l := f.Links[name]
			l.DefaultRoute, l.Guests = routes[index], others[index]
			f.Links[name] = l
		}
	}
	if asks(vnode.SRIOV) {
		return f, readVFs(h, leases, f)
	}
	return f, nil
}

// readVFs sets VFs of the adapters in f.Links.
func readVFs(h *netlink.Handle, leases sriov.Leases, f Facts) error {
	adapters, err := sriov.List(sriov.Sys)
	if err != nil {
		return err
	}
	users, err := newVFUsers(h, leases, f.list)
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
			user, err := users.of(vf)
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

// defaultRoutes returns the indexes of the links that carry a default route.
func defaultRoutes(h *netlink.Handle) (map[int]bool, error) {
	routes, err := whole(func() ([]netlink.Route, error) { return h.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	on := map[int]bool{}
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		on[r.LinkIndex] = true
		for _, hop := range r.MultiPath {
			on[hop.LinkIndex] = true
		}
	}
	return on, nil
}

// speed returns the speed of an adapter, 0 if unknown. The speed of a virtual link is not real and is not read.
func speed(l netlink.Link) vnode.BitRate {
	if l.Attrs().ParentDev == "" {
		return 0
	}
	text, err := os.ReadFile("/sys/class/net/" + l.Attrs().Name + "/speed")
	if err != nil {
		return 0
	}
	mbit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 32)
	if err != nil || mbit <= 0 {
		return 0
	}
	return vnode.BitRate(mbit) * 1_000_000
}

// MACOf returns the MAC of a link of the host; "" if there is no such link.
func MACOf(name string) string {
	h, err := host()
	if err != nil {
		return ""
	}
	defer h.Close()
	l, err := byName(h, name)
	if err != nil || l == nil {
		return ""
	}
	return l.Attrs().HardwareAddr.String()
}
