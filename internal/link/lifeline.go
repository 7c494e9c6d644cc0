package link

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Lifeline says what would be lost if the link name went down, it or what is built on it (a bridge, a VLAN …): the host's
// default route, or the address by which somebody is logged in; "" if neither. login may be the zero address.
func Lifeline(name string, login netip.Addr) (string, error) {
	h, err := host()
	if err != nil {
		return "", err
	}
	defer h.Close()
	links, err := whole(h.LinkList)
	if err != nil {
		return "", fmt.Errorf("list links: %w", err)
	}
	on := above(name, links)
	routes, err := defaultRoutes(h)
	if err != nil {
		return "", err
	}
	for _, l := range on {
		if routes[l.Attrs().Index] {
			return "the host's default route", nil
		}
		addrs, err := addresses(h, l)
		if err != nil {
			return "", err
		}
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && login.IsValid() && ip.Unmap() == login.Unmap() {
				return "the SSH session that asks", nil
			}
		}
	}
	return "", nil
}

// above returns a link and all that is built on it.
func above(name string, links []netlink.Link) []netlink.Link {
	on := map[int]bool{}
	var all []netlink.Link
	for grown := true; grown; {
		grown = false
		for _, l := range links {
			a := l.Attrs()
			// A veth's "parent" is its peer; a parent elsewhere has a namespace id.
			built := on[a.ParentIndex] && a.NetNsID < 0 && l.Type() != "veth"
			if on[a.Index] || !built && a.Name != name && !hasPort(l, links, on) {
				continue
			}
			on[a.Index], grown = true, true
			all = append(all, l)
		}
	}
	return all
}

// hasPort reports whether one of the links in on is a port of master: of a bridge or a bond.
func hasPort(master netlink.Link, links []netlink.Link, on map[int]bool) bool {
	for _, l := range links {
		if on[l.Attrs().Index] && l.Attrs().MasterIndex == master.Attrs().Index {
			return true
		}
	}
	return false
}

// HostMACs maps each MAC that is in use on this host to what has it.
func HostMACs() (map[string]string, error) { return hostMACs("") }
