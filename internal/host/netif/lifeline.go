package netif

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Lifeline says what would be lost if the links with these names went down, and the links built on them (a bridge, a
// VLAN …) with them: the host's default route, or the address of the login session; "" if neither. login may be the
// zero address.
func Lifeline(names []string, login netip.Addr) (string, error) {
	h, err := Host()
	if err != nil {
		return "", err
	}
	defer h.Close()
	links, err := List(h)
	if err != nil {
		return "", err
	}
	on := above(names, links)
	routes, err := DefaultRoutes(h)
	if err != nil {
		return "", err
	}
	for _, l := range on {
		if routes[l.Attrs().Index] {
			return "the host's default route", nil
		}
		addrs, err := Addresses(h, l)
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

// above returns the links with these names and all links built on them.
func above(names []string, links []netlink.Link) []netlink.Link {
	on := map[int]bool{}
	var all []netlink.Link
	for grown := true; grown; {
		grown = false
		for _, l := range links {
			a := l.Attrs()
			if on[a.Index] || !on[Lower(l)] && !slices.Contains(names, a.Name) && !hasPort(l, links, on) {
				continue
			}
			on[a.Index], grown = true, true
			all = append(all, l)
		}
	}
	return all
}

// hasPort reports whether a link in on is a port of master, a bridge or a bond.
func hasPort(master netlink.Link, links []netlink.Link, on map[int]bool) bool {
	for _, l := range links {
		if on[l.Attrs().Index] && l.Attrs().MasterIndex == master.Attrs().Index {
			return true
		}
	}
	return false
}
