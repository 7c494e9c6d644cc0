package address

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/network/dhcp"
	"berth/internal/sys/mac"
)

// Announcement tells the network of an interface which MAC its addresses have from now on. Machines that knew another MAC by
// such an address, for example of a node that was removed, would else send there for half a minute, and routers for hours.
//
// It is one frame for an address, as the kernel itself would send by arp_notify and ndisc_notify: an ARP announcement (RFC 5227, 2.3), or
// an unsolicited neighbour advertisement with the override flag (RFC 4861, 7.2.6). The kernel's own come when an interface is set
// up, which is before its bridge takes frames from it, and not when an IPv4 address is added later.
type Announcement struct {
	Way     netif.Way `json:"way,omitempty"`     // Peer: a veth, whose other end is a port of a bridge
	Hub     netif.Hub `json:"hub,omitempty"`     // where that bridge is
	Adapter bool      `json:"adapter,omitempty"` // a real adapter, whose carrier comes late
	Again   bool      `json:"again,omitempty"`   // the network goes on beyond Berth's own bridges: see Announcer
}

// Announcer announces the addresses that an interface of a node has now. A network beyond Berth's own bridges may have taken no
// frames yet when Do announced them: a port of a switch whose carrier has just come, or of a bridge with STP.
type Announcer interface {
	AnnounceAgain(ctx context.Context) error
}

// AnnounceAgain implements Announcer.
func (c *Configure) AnnounceAgain(ctx context.Context) error {
	if !c.Announce.Again {
		return nil
	}
	addrs, err := addrsOf(c.Address)
	if err != nil {
		return err
	}
	return c.On(func(r *netif.Socket, l netlink.Link) error { return c.Announce.send(ctx, &c.Inside, r, l, addrs) })
}

// AnnounceAgain implements Announcer.
func (d *DHCP) AnnounceAgain(ctx context.Context) error {
	lease := d.Lease()
	if !d.Announce.Again || lease.State(dhcp.Now()) == dhcp.Ended {
		return nil
	}
	addrs := []netip.Addr{lease.Address.Addr()}
	return d.On(func(r *netif.Socket, l netlink.Link) error { return d.Announce.send(ctx, &d.Inside, r, l, addrs) })
}

// send announces addresses of the interface in l once its network takes frames. Without a carrier the announcement cannot
// arrive: that is no error, and neither is an interface that is no Ethernet.
func (a Announcement) send(ctx context.Context, in *netif.Inside, r *netif.Socket, l netlink.Link, addrs []netip.Addr) error {
	own := netif.MAC(l)
	if len(addrs) == 0 || !own.IsEthernet() {
		return nil
	}
	ok, err := in.Carrier(ctx, r, a.Adapter)
	if ok && err == nil && a.Way == netif.Peer {
		ok, err = in.Forwards(ctx, a.Hub, l)
	}
	if err != nil || !ok {
		return err
	}
	if err := netif.Within(r.NS, func() error { return sendAll(l.Attrs().Index, own, addrs) }); err != nil {
		return fmt.Errorf("announce the addresses of %s: %w", in.If, err)
	}
	return nil
}

// sendAll sends an announcement of each address. It must run in the interface's namespace.
func sendAll(index int, own mac.Address, addrs []netip.Addr) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // 0: receives nothing
	if errors.Is(err, unix.EAFNOSUPPORT) {                                     // a kernel without CONFIG_PACKET
		return nil
	}
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	// The kernel ends a packet socket after a grace period of RCU, some 10 ms (packet_release), which need not be waited for.
	defer func() { go unix.Close(fd) }()
	for _, a := range addrs {
		err := unix.Sendto(fd, announcement(own, a), 0, &unix.SockaddrLinklayer{Ifindex: index})
		if err != nil && !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.ENOBUFS) { // treated as lost on the way
			return fmt.Errorf("send %s: %w", a, err)
		}
	}
	return nil
}

// announcement returns the Ethernet frame that says that a MAC has an address.
func announcement(own mac.Address, a netip.Addr) []byte {
	if a.Is4() {
		return arpRequest(own, a, a)
	}
	const override, targetMAC = 0x20, 2
	ip := a.As16()
	msg := append([]byte{136, 0, 0, 0, override, 0, 0, 0}, ip[:]...)
	msg = append(append(msg, targetMAC, 1), own.HardwareAddr()...)
	return icmp6(own, a, netip.IPv6LinkLocalAllNodes(), msg)
}
