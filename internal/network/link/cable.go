package link

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/sys/mac"
)

// Cable connects the host and the namespace ns by a veth pair: hostIf on the host with the address outside, ifname in
// ns with the address inside. Both ends go when the namespace goes. It is the wire of a measurement without a second
// machine; nodes get their links from Live.
func Cable(ns netif.NS, hostIf, ifname string, outside, inside netip.Prefix) error {
	f, err := ns.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	there, err := netif.At(f)
	if err != nil {
		return err
	}
	defer there.Close()
	here, err := netif.Host()
	if err != nil {
		return err
	}
	defer here.Close()
	pair := &netlink.Veth{
		LinkAttrs: netif.Attrs(hostIf, 0, mac.Address{}), PeerName: ifname, PeerTxQLen: -1, PeerNamespace: netlink.NsFd(f.Fd()),
	}
	if err := here.LinkAdd(pair); err != nil {
		return fmt.Errorf("make link %s: %w", hostIf, err)
	}
	err = setAddress(there, ifname, inside)
	if err == nil {
		err = setAddress(here, hostIf, outside)
	}
	if err != nil {
		_ = here.LinkDel(pair) // both ends go
	}
	return err
}

// setAddress gives a link an address and sets it up.
func setAddress(h *netlink.Handle, name string, p netip.Prefix) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	n := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	if err := h.AddrAdd(l, &netlink.Addr{IPNet: n}); err != nil {
		return fmt.Errorf("give link %s the address %s: %w", name, p, err)
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	return nil
}
