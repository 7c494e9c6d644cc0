package netif

import (
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/sys/mac"
)

// DefaultRoutes returns the indexes of the links that carry a default route.
func DefaultRoutes(h *netlink.Handle) (map[int]bool, error) {
	routes, err := Dump(func() ([]netlink.Route, error) { return h.RouteList(nil, netlink.FAMILY_ALL) })
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

// Lower returns the index of the link that l is built on, such as the parent of a VLAN or a macvlan; 0 if there is none
// in l's namespace.
func Lower(l netlink.Link) int {
	a := l.Attrs()
	if a.NetNsID >= 0 || l.Type() == "veth" { // a veth's "parent" is its peer; a parent elsewhere has a namespace id
		return 0
	}
	if v, ok := l.(*netlink.Vxlan); ok { // it reports its parent in a field of its own
		return v.VtepDevIndex
	}
	return a.ParentIndex
}

// Uppers returns the names of the links that are built on other links, by the index of the lower link. It omits links
// of other namespaces: see Macvlans.
func Uppers(links []netlink.Link) map[int][]string {
	names := map[int][]string{}
	for _, l := range links {
		if on := Lower(l); on != 0 {
			names[on] = append(names[on], l.Attrs().Name)
		}
	}
	return names
}

// Macvlans returns, by index of a link, the MACs besides its own that the link accepts: those of the macvlans on it that
// are up, in any network namespace. The host's list of links does not show links in nodes; the MAC filter of the
// adapter below does (uc in struct net_device, which rtnl_fdb_dump reports, as in bridge fdb show). Two kinds of links
// do not show: a VLAN in another namespace with its adapter's MAC, and a macvlan whose filter is in hardware
// (l2-fwd-offload).
func Macvlans(h *netlink.Handle) (map[int][]mac.Address, error) {
	entries, err := Dump(func() ([]netlink.Neigh, error) { return h.NeighList(0, unix.AF_BRIDGE) })
	if err != nil {
		return nil, fmt.Errorf("list the MACs that adapters take in: %w", err)
	}
	macs := map[int][]mac.Address{}
	for _, e := range entries {
		a := mac.Of(e.HardwareAddr)
		if a.IsEthernet() && !a.IsGroup() && e.Flags&netlink.NTF_SELF != 0 && e.IP == nil { // an entry with an IP address is a tunnel's
			macs[e.LinkIndex] = append(macs[e.LinkIndex], a)
		}
	}
	return macs, nil
}

// teardown is how long to wait for the kernel to destroy an ended node's network namespace and the macvlans in it. The
// kernel does so asynchronously (cleanup_net) and does not report it.
const teardown = 2 * time.Second

// LastingMacvlans is Macvlans, repeated for a while as long as one of these links has any.
func LastingMacvlans(h *netlink.Handle, links map[int]bool) (map[int][]mac.Address, error) {
	for end := time.Now().Add(teardown); ; time.Sleep(20 * time.Millisecond) {
		all, err := Macvlans(h)
		if err != nil || time.Now().After(end) {
			return all, err
		}
		some := false
		for index := range all {
			some = some || links[index]
		}
		if !some {
			return all, nil
		}
	}
}
