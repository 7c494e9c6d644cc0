package sriov

import (
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/sys/mac"
)

// Users finds the users of the host's virtual functions, from one reading of the host's links.
type Users struct {
	h        *netlink.Handle
	leases   Leases
	links    []netlink.Link
	uppers   map[int][]string      // names by index, in the host's namespace
	macvlans map[int][]mac.Address // MACs by index, in any namespace
}

// NewUsers reads the macvlans on the links of functions, which also show that a function is used. links are the links of h's
// namespace.
func NewUsers(h *netlink.Handle, leases Leases, links []netlink.Link) (*Users, error) {
	others, err := netif.Macvlans(h)
	return &Users{h: h, leases: leases, links: links, uppers: netif.Uppers(links), macvlans: others}, err
}

// UserOf names the user of a virtual function; "" if it has none, so that it may be removed.
func UserOf(leases Leases, vf VF) (string, error) {
	if _, held := leases.Read(vf.PCI); !held && vf.Driver == "" {
		return "", nil
	}
	h, err := netif.Host()
	if err != nil {
		return "", err
	}
	defer h.Close()
	links, err := netif.List(h)
	if err != nil {
		return "", err
	}
	users, err := NewUsers(h, leases, links)
	if err != nil {
		return "", err
	}
	return users.Of(vf)
}

// Of names the user of a virtual function; "" if it is free. A free function has no lease. It has a link on the host with no
// address (except link-local ones), no master and no link on top of it, also no macvlan in another namespace.
func (u *Users) Of(vf VF) (string, error) {
	if l, ok := u.leases.Read(vf.PCI); ok {
		return "node " + l.String(), nil
	}
	switch {
	case vf.Driver == "":
		return "nobody, but it has no driver", nil
	case strings.HasPrefix(vf.Driver, "vfio"):
		return "driver " + vf.Driver + " (a virtual machine)", nil
	case vf.Link == "":
		return "another network namespace", nil
	}
	i := slices.IndexFunc(u.links, func(l netlink.Link) bool { return l.Attrs().Name == vf.Link })
	if i < 0 {
		return "what just took it", nil
	}
	l := u.links[i]
	if on := u.uppers[l.Attrs().Index]; len(on) > 0 {
		return "the host, as " + vf.Link + " under " + strings.Join(on, ", "), nil
	}
	if macs := u.macvlans[l.Attrs().Index]; len(macs) > 0 {
		return "a link on " + vf.Link + " in another network namespace, with MAC " + mac.List(macs), nil
	}
	addrs, err := netif.Addresses(u.h, l)
	if err != nil {
		return "", err
	}
	host := slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return !a.IP.IsLinkLocalUnicast() })
	if host || l.Attrs().MasterIndex != 0 {
		return "the host, as " + vf.Link, nil
	}
	return "", nil
}
