package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
)

// ledTo matches the flows of datagrams that a published port has led to an address.
type ledTo netip.Addr

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (l ledTo) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	from, ok := netip.AddrFromSlice(f.Reverse.SrcIP)
	return ok && f.Forward.Protocol == unix.IPPROTO_UDP && from.Unmap() == netip.Addr(l) && !f.Forward.DstIP.Equal(f.Reverse.SrcIP)
}

// cutDatagrams makes the kernel forget the flows of datagrams that published ports have led to some addresses. It remembers where
// such a flow led for as long as its client sends from the same port: to the address of a node that is gone, or that another node
// has by now which does not publish this port. A connection of TCP ends with its node, and the next one is a flow of its own.
//
// The kernel reads its whole table for each address, 10 ms on a small host.
func cutDatagrams(to []netip.Addr) error {
	for _, a := range to {
		if err := cut(a.Is6(), ledTo(a)); err != nil {
			return fmt.Errorf("forget the flows that were led to %s: %w", a, err)
		}
	}
	return nil
}

// cut makes the kernel forget the flows of one family that a filter matches.
func cut(v6 bool, flows netlink.CustomConntrackFilter) error {
	family := netlink.InetFamily(unix.AF_INET)
	if v6 {
		family = unix.AF_INET6
	}
	_, err := netif.Dump(func() ([]uint, error) {
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, flows)
		return []uint{n}, err
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) { // a kernel without nf_conntrack_netlink or nfnetlink
		return nil
	}
	return err
}

// sentTo matches the flows of datagrams to ports of the host's own addresses.
type sentTo struct {
	ports []vnode.Port
	own   []netip.Addr
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s sentTo) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	to, ok := netip.AddrFromSlice(f.Forward.DstIP)
	return ok && f.Forward.Protocol == unix.IPPROTO_UDP && slices.Contains(s.own, to.Unmap()) &&
		slices.ContainsFunc(s.ports, func(p vnode.Port) bool { return p.Takes(to.Unmap(), p.Proto, f.Forward.DstPort) })
}
