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

// lower is the index of the link that l is built on, as a VLAN or a macvlan is; 0 if it is none of l's namespace.
func lower(l netlink.Link) int {
	a := l.Attrs()
	if a.NetNsID >= 0 || l.Type() == "veth" { // a veth's "parent" is its peer; a parent elsewhere has a namespace id
		return 0
	}
	if v, ok := l.(*netlink.Vxlan); ok { // it tells its parent in its own way
		return v.VtepDevIndex
	}
	return a.ParentIndex
}

// uppers names the links that are built on others, by the index of the one below. Links of other namespaces are not among
// them: see guests.
func uppers(links []netlink.Link) map[int][]string {
	names := map[int][]string{}
	for _, l := range links {
		if on := lower(l); on != 0 {
			names[on] = append(names[on], l.Attrs().Name)
		}
	}
	return names
}

// guests maps links, by index, to the MACs beside their own that they take in: those of the macvlans on them that are up,
// in whatever network namespace. A link in a node does not show in the host's list of links; the filter of the adapter
// below it does (struct net_device's uc, which rtnl_fdb_dump tells as bridge fdb show does). A VLAN elsewhere that has its
// adapter's MAC, and a macvlan whose filter the hardware holds (l2-fwd-offload), do not show.
func guests(h *netlink.Handle) (map[int][]string, error) {
	entries, err := whole(func() ([]netlink.Neigh, error) { return h.NeighList(0, unix.AF_BRIDGE) })
	if err != nil {
		return nil, fmt.Errorf("list the MACs that adapters take in: %w", err)
	}
	macs := map[int][]string{}
	for _, e := range entries {
		single := len(e.HardwareAddr) == 6 && e.HardwareAddr[0]&1 == 0
		if single && e.Flags&netlink.NTF_SELF != 0 && e.IP == nil { // with an IP address it is a tunnel's
			macs[e.LinkIndex] = append(macs[e.LinkIndex], e.HardwareAddr.String())
		}
	}
	return macs, nil
}

// teardown is how long the kernel may take to end the network namespace of a node that is gone, and the macvlans in it:
// it does so in its own time (cleanup_net), and tells nobody when.
const teardown = 2 * time.Second

// lastingGuests is guests, read again for a while as long as one of these links has any.
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
