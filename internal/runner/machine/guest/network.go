package guest

import (
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
)

// loopback brings lo up.
func loopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// configure gives an interface its name, addresses and routes.
func configure(i wire.Interface) error {
	link, err := linkOf(i.MAC)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetName(link, i.Name); err != nil {
		return fmt.Errorf("name it: %w", err)
	}
	if err := netlink.LinkSetMTU(link, i.MTU); err != nil {
		return fmt.Errorf("set its MTU to %d: %w", i.MTU, err)
	}
	for _, text := range i.Address {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags |= unix.IFA_F_NODAD // nobody else has it: the host has asked
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %s: %w", text, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	if i.Gateway != "" {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(i.Gateway)}); err != nil {
			return fmt.Errorf("gateway %s: %w", i.Gateway, err)
		}
	}
	for _, r := range i.Routes {
		_, to, err := net.ParseCIDR(r[0])
		if err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: net.ParseIP(r[1])}); err != nil {
			return fmt.Errorf("route to %s: %w", r[0], err)
		}
	}
	return nil
}

// linkOf waits for the adapter with a MAC, and finds its link.
func linkOf(mac string) (netlink.Link, error) {
	return netlink.LinkByName(await(fmt.Sprintf("adapter with MAC %s: the kernel lacks virtio_net", mac), func() string {
		links, _ := netlink.LinkList()
		for _, l := range links {
			if strings.EqualFold(l.Attrs().HardwareAddr.String(), mac) {
				return l.Attrs().Name
			}
		}
		return ""
	}))
}
