package address

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Configure gives an interface in a node its addresses and routes and sets it up. It also sets loopback up.
//
// IPv6 addresses are usable at once: they skip duplicate address detection, which would keep them tentative for a
// second or two. Probe looks for duplicates before. Do announces them.
type Configure struct {
	netif.Inside
	MAC     mac.Address   `json:"mac,omitzero"`  // Verify expects it; empty: any
	MTU     int           `json:"mtu,omitempty"` // bytes; Verify expects it; 0: any
	Address []string      `json:"addresses,omitempty"`
	Gateway string        `json:"gateway,omitempty"`
	Routes  []vnode.Route `json:"routes,omitempty"`

	Announce Announcement `json:"announce,omitzero"`

	// Guest: the addresses and routes are those of a machine's guest, which sets them itself.
	Guest bool `json:"guest,omitempty"`
}

// Kind implements step.Step.
func (c *Configure) Kind() string { return "link.configure" }

func (c *Configure) String() string {
	s := append([]string{"up"}, c.Address...)
	if c.Gateway != "" {
		s = append(s, "gateway "+c.Gateway)
	}
	for _, r := range c.Routes {
		s = append(s, fmt.Sprintf("route %s via %s", r.To, r.Via))
	}
	return c.If + " " + strings.Join(s, ", ")
}

// Do sets everything. Settings that are already in place stay.
func (c *Configure) Do(ctx context.Context) error {
	return c.On(func(r *netif.Socket, l netlink.Link) error { return c.set(ctx, r, l) })
}

func (c *Configure) set(ctx context.Context, r *netif.Socket, l netlink.Link) error {
	if err := loopbackUp(r); err != nil {
		return err
	}
	for _, cidr := range c.Address {
		if c.Guest {
			break
		}
		if err := addAddress(r.Handle, l, cidr); err != nil {
			return err
		}
	}
	if err := netif.BringUp(r.Handle, l, c.MAC); err != nil {
		return err
	}
	routes, err := c.routes(l)
	if err != nil {
		return err
	}
	if c.Guest {
		routes = nil
	}
	if err := setRoutes(r, routes, c.If); err != nil {
		return err
	}
	addrs, err := addrsOf(c.Address)
	if err != nil {
		return fmt.Errorf("announce the addresses of %s: %w", c.If, err)
	}
	return c.Announce.send(ctx, &c.Inside, r, l, addrs)
}

// addrsOf returns addresses without their prefix lengths.
func addrsOf(cidrs []string) (all []netip.Addr, err error) {
	for _, cidr := range cidrs {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("address %s: %w", cidr, err)
		}
		all = append(all, p.Addr())
	}
	return all, nil
}

// setRoutes adds routes over an interface.
func setRoutes(r *netif.Socket, routes []netlink.Route, where string) error {
	for _, route := range routes {
		if err := r.RouteReplace(&route); err != nil {
			return fmt.Errorf("add route to %s via %s on %s: %w", route.Dst, route.Gw, where, err)
		}
	}
	return nil
}

func loopbackUp(r *netif.Socket) error {
	lo, err := r.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo in the node: %w", err)
	}
	if netif.IsUp(lo) {
		return nil
	}
	if err := r.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

func addAddress(h *netlink.Handle, l netlink.Link, cidr string) error {
	ad, err := netlink.ParseAddr(cidr)
	if err == nil {
		if ad.IP.To4() == nil {
			ad.Flags = unix.IFA_F_NODAD
		}
		err = h.AddrReplace(l, ad)
	}
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return refuse.Cannotf("leave it out, or start the host without ipv6.disable", "add address %s to %s: this kernel has no IPv6: %w", cidr, l.Attrs().Name, err)
	}
	if err != nil {
		return fmt.Errorf("add address %s to %s: %w", cidr, l.Attrs().Name, err)
	}
	return nil
}

// routes returns the wanted routes, the default route of Gateway first.
func (c *Configure) routes(l netlink.Link) ([]netlink.Route, error) {
	var want []vnode.Route
	if gw := net.ParseIP(c.Gateway); c.Gateway != "" && gw.To4() != nil {
		want = append(want, vnode.Route{To: "0.0.0.0/0", Via: c.Gateway})
	} else if c.Gateway != "" {
		want = append(want, vnode.Route{To: "::/0", Via: c.Gateway})
	}
	var routes []netlink.Route
	for _, w := range append(want, c.Routes...) {
		to, err := netlink.ParseIPNet(w.To)
		if err != nil {
			return nil, fmt.Errorf("route to %s: %w", w.To, err)
		}
		routes = append(routes, netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Gw: net.ParseIP(w.Via), Protocol: unix.RTPROT_STATIC})
	}
	return routes, nil
}

// Verify reads the interface and its routes back.
func (c *Configure) Verify(context.Context) error {
	return c.On(c.verify)
}

func (c *Configure) verify(r *netif.Socket, l netlink.Link) error {
	s, err := netif.ReadLink(r.Handle, l)
	if err != nil {
		return err
	}
	switch {
	case !s.Up:
		return fmt.Errorf("%s in the node is down", c.If)
	case !c.MAC.IsZero() && s.MAC != c.MAC:
		return fmt.Errorf("%s in the node has MAC %s, not %s", c.If, s.MAC, c.MAC)
	case c.MTU != 0 && s.MTU != c.MTU:
		return fmt.Errorf("%s in the node has MTU %d, not %d", c.If, s.MTU, c.MTU)
	}
	if c.Guest {
		return nil
	}
	for _, want := range c.Address {
		ad, err := netlink.ParseAddr(want)
		if err != nil || !slices.Contains(s.Address, ad.IPNet.String()) {
			return fmt.Errorf("%s in the node has %s, not %s", c.If, strings.Join(s.Address, ", "), want)
		}
	}
	return c.verifyRoutes(r.Handle, l)
}

func (c *Configure) verifyRoutes(h *netlink.Handle, l netlink.Link) error {
	want, err := c.routes(l)
	if err != nil || len(want) == 0 {
		return err
	}
	have, err := netif.Dump(func() ([]netlink.Route, error) { return h.RouteList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", c.If, err)
	}
	for _, w := range want {
		if !slices.ContainsFunc(have, func(r netlink.Route) bool {
			return r.Dst != nil && r.Dst.String() == w.Dst.String() && r.Gw.Equal(w.Gw)
		}) {
			return fmt.Errorf("%s in the node has no route to %s via %s", c.If, w.Dst, w.Gw)
		}
	}
	return nil
}

// Undo does nothing: the settings go with the interface, or the step that brings a lent interface home resets them.
func (c *Configure) Undo(context.Context) error { return nil }
