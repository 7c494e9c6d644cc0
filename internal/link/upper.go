package link

import (
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// listLinks returns all links of h's namespace.
func listLinks(h *netlink.Handle) ([]netlink.Link, error) {
	links, err := whole(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

// lower returns the index of the link that l is built on, such as the parent of a VLAN or a macvlan; 0 if there is none
// in l's namespace.
func lower(l netlink.Link) int {
	a := l.Attrs()
	if a.NetNsID >= 0 || l.Type() == "veth" { // a veth's "parent" is its peer; a parent elsewhere has a namespace id
		return 0
	}
	if v, ok := l.(*netlink.Vxlan); ok { // it reports its parent in a field of its own
		return v.VtepDevIndex
	}
	return a.ParentIndex
}

// uppers returns the names of the links that are built on other links, by the index of the lower link. It omits links
// of other namespaces: see guests.
func uppers(links []netlink.Link) map[int][]string {
	names := map[int][]string{}
	for _, l := range links {
		if on := lower(l); on != 0 {
			names[on] = append(names[on], l.Attrs().Name)
		}
	}
	return names
}

// guests returns, by index of a link, the MACs besides its own that the link accepts: those of the macvlans on it that
// are up, in any network namespace. The host's list of links does not show links in nodes; the MAC filter of the
// adapter below does (uc in struct net_device, which rtnl_fdb_dump reports, as in bridge fdb show). Two kinds of links
// do not show: a VLAN in another namespace with its adapter's MAC, and a macvlan whose filter is in hardware
// (l2-fwd-offload).
func guests(h *netlink.Handle) (map[int][]string, error) {
	entries, err := whole(func() ([]netlink.Neigh, error) { return h.NeighList(0, unix.AF_BRIDGE) })
	if err != nil {
		return nil, fmt.Errorf("list the MACs that adapters take in: %w", err)
	}
	macs := map[int][]string{}
	for _, e := range entries {
		single := len(e.HardwareAddr) == 6 && e.HardwareAddr[0]&1 == 0
		if single && e.Flags&netlink.NTF_SELF != 0 && e.IP == nil { // an entry with an IP address is a tunnel's
			macs[e.LinkIndex] = append(macs[e.LinkIndex], e.HardwareAddr.String())
		}
	}
	return macs, nil
}

// teardown is how long to wait for the kernel to destroy an ended node's network namespace and the macvlans in it. The
// kernel does so asynchronously (cleanup_net) and does not report it.
const teardown = 2 * time.Second

// lastingGuests repeats guests for a while as long as one of these links has any.
func lastingGuests(h *netlink.Handle, links map[int]bool) (map[int][]string, error) {
	for end := time.Now().Add(teardown); ; time.Sleep(20 * time.Millisecond) {
		all, err := guests(h)
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
