package address

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/network/antispoof"
	"berth/internal/network/dhcp"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// DHCP gives an interface of a node an IPv4 address that a DHCP server leases. The interface must be up. The lease is
// in File, where the keeper, which renews it, and Undo in another process find it.
type DHCP struct {
	netif.Inside
	Hostname string          `json:"hostname"`
	Adapter  bool            `json:"adapter"`          // a real adapter, whose carrier comes late
	Default  bool            `json:"default"`          // the server's router is the node's default route
	Routes   []vnode.Route   `json:"routes,omitempty"` // IPv4 routes, whose gateways are in the leased prefix
	File     string          `json:"file"`
	Check    *antispoof.Step `json:"check,omitempty"` // of the same interface; it must let the leased address pass

	Announce Announcement `json:"announce,omitzero"`
}

// Kind implements step.Step.
func (d *DHCP) Kind() string { return "link.dhcp" }

func (d *DHCP) String() string {
	s := []string{fmt.Sprintf("%s an address by DHCP, as %s", d.If, d.Hostname)}
	if d.Default {
		s = append(s, "default route")
	}
	for _, r := range d.Routes {
		s = append(s, fmt.Sprintf("route %s via %s", r.To, r.Via))
	}
	return strings.Join(s, ", ")
}

// Do leases an address and sets it. It sets a lease that is still valid again without asking, for example when a
// virtual function came back.
func (d *DHCP) Do(ctx context.Context) error {
	l := d.Lease()
	if l.State(dhcp.Now()) == dhcp.Ended {
		var err error
		if l, err = d.Ask(ctx); err != nil {
			return err
		}
		fault.Point("leased")
	}
	return d.Take(ctx, l)
}

// Lease returns the stored lease.
func (d *DHCP) Lease() dhcp.Lease { return dhcp.ReadLease(d.File) }

// mostDeclined is after how many offered addresses that are in use Ask gives up.
const mostDeclined = 3

// Ask asks the DHCP servers of the network for a free address. It changes nothing on the interface.
func (d *DHCP) Ask(ctx context.Context) (l dhcp.Lease, err error) {
	err = d.speak(ctx, func(r *netif.Socket, c *dhcp.Client, q *question) error {
		var used []string
		for range mostDeclined {
			if l, err = c.Lease(ctx); err != nil {
				return d.refused(err)
			}
			q.addrs = []netip.Addr{l.Address.Addr()}
			var who mac.Address
			if err := netif.Within(r.NS, func() (err error) { _, who, err = q.ask(ctx); return err }); err != nil {
				return fmt.Errorf("probe the address %s that %s got by DHCP: %w", l.Address.Addr(), d.If, err)
			}
			if who.IsZero() {
				return nil
			}
			used = append(used, fmt.Sprintf("%s by %s", l.Address.Addr(), who))
			if err := c.Decline(l); err != nil {
				return err
			}
		}
		return refuse.Busyf("no address for %s by DHCP: what server %s gives is in use on that network: %s", d.If, l.Server, strings.Join(used, ", "))
	})
	return l, err
}

// refused adds to err which interface has no lease, and a remedy.
func (d *DHCP) refused(err error) error {
	if _, isNAK := errors.AsType[*dhcp.NAKError](err); !isNAK && !errors.Is(err, dhcp.ErrSilence) {
		return fmt.Errorf("ask for an address for %s by DHCP: %w", d.If, err)
	}
	what := fmt.Sprintf("no address for %s by DHCP: %v", d.If, err)
	if err == dhcp.ErrSilence { //nolint:errorlint // what wraps it has heard something
		what += fmt.Sprintf(" in %s", dhcp.Asked)
	}
	return &refuse.Error{Kind: refuse.Failed, What: what, Remedy: "is there a DHCP server on that network? else give it an address", Err: err}
}

// Renew asks for more time. It changes nothing on the interface.
func (d *DHCP) Renew(ctx context.Context, before dhcp.Lease) (l dhcp.Lease, err error) {
	err = d.speak(ctx, func(_ *netif.Socket, c *dhcp.Client, _ *question) error {
		l, err = c.Renew(ctx, before)
		return err
	})
	return l, err
}

// speak calls f with a client on the interface, once the interface can send.
func (d *DHCP) speak(ctx context.Context, f func(r *netif.Socket, c *dhcp.Client, q *question) error) error {
	r, err := d.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	ok, err := d.Carrier(ctx, r, d.Adapter)
	if err != nil {
		return err
	}
	if !ok {
		return &refuse.Error{Kind: refuse.Failed, What: fmt.Sprintf("no address for %s by DHCP: it has no carrier", d.If), Remedy: "is its cable in, and what it is connected to up?"}
	}
	c, q, err := d.client(r)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(r, c, q)
}

func (d *DHCP) client(r *netif.Socket) (*dhcp.Client, *question, error) {
	l, err := d.Link(r)
	if err != nil {
		return nil, nil, err
	}
	q := &question{index: l.Attrs().Index, mac: netif.MAC(l)}
	if !q.mac.IsEthernet() {
		return nil, nil, refuse.Cannotf("give it an address", "no address for %s by DHCP: it is no Ethernet", d.If)
	}
	var c *dhcp.Client
	err = netif.Within(r.NS, func() (err error) { c, err = dhcp.Open(q.index, q.mac.HardwareAddr(), d.Hostname); return err })
	return c, q, err
}

// Take gives the interface the address of a lease, with the lease's lifetime, and the routes. It removes all other IPv4
// addresses. The lease is written after the address is set: if the process is killed in between, the address outlives
// the lease in the file, and renewal comes early, not late. An address that the interface did not have before is announced.
func (d *DHCP) Take(ctx context.Context, l dhcp.Lease) error {
	return d.On(func(r *netif.Socket, on netlink.Link) error { return d.take(ctx, r, on, l) })
}

func (d *DHCP) take(ctx context.Context, r *netif.Socket, on netlink.Link, l dhcp.Lease) error {
	had, err := d.removeAddresses(r, on, l.Address)
	if err != nil {
		return err
	}
	if err := d.follow(l); err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: ipNet(l.Address)}
	if left := l.Left(dhcp.Now()); left != dhcp.Forever { // a lifetime of 0 means forever too
		addr.ValidLft, addr.PreferedLft = int(left), int(left)
	}
	if err := r.AddrReplace(on, addr); err != nil {
		return fmt.Errorf("set address %s of %s, which is leased: %w", l.Address, d.If, err)
	}
	fault.Point("leased address set")
	if !had || d.Lease().Address != l.Address {
		if err := d.Announce.send(ctx, &d.Inside, r, on, []netip.Addr{l.Address.Addr()}); err != nil {
			return err
		}
	}
	if err := file.WriteJSONForBoot(d.File, l); err != nil {
		return fmt.Errorf("keep the lease of %s: %w", d.If, err)
	}
	return d.setRoutes(r, on, l)
}

// follow makes the spoof check pass the address of a lease and no other.
func (d *DHCP) follow(l dhcp.Lease) error {
	if d.Check == nil {
		return nil
	}
	check := *d.Check
	check.Inside = d.Inside
	if err := check.Follow(l); err != nil {
		return err
	}
	fault.Point("spoof check follows the lease")
	return nil
}

func (d *DHCP) setRoutes(r *netif.Socket, on netlink.Link, l dhcp.Lease) error {
	c := Configure{Inside: d.Inside, Routes: d.Routes}
	routes, err := c.routes(on)
	if err != nil {
		return err
	}
	if d.Default && l.Router.IsValid() {
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		route := netlink.Route{LinkIndex: on.Attrs().Index, Dst: ipNet(all), Gw: l.Router.AsSlice(), Protocol: unix.RTPROT_DHCP}
		if !l.Address.Contains(l.Router) { // for example where each machine has a /32
			route.Flags = int(netlink.FLAG_ONLINK)
		}
		routes = append(routes, route)
	}
	return setRoutes(r, routes, d.If+", which has the leased address "+l.Address.String())
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// removeAddresses removes all IPv4 addresses of the interface except one, and returns whether the interface has that one.
func (d *DHCP) removeAddresses(r *netif.Socket, on netlink.Link, but netip.Prefix) (has bool, err error) {
	all, err := netif.Dump(func() ([]netlink.Addr, error) { return r.AddrList(on, netlink.FAMILY_V4) })
	if err != nil {
		return false, fmt.Errorf("list addresses of %s: %w", d.If, err)
	}
	for _, a := range all {
		if a.IPNet.String() == but.String() {
			has = true
			continue
		}
		if err := r.AddrDel(on, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return has, fmt.Errorf("remove address %s of %s: %w", a.IPNet, d.If, err)
		}
	}
	return has, nil
}

// Drop removes the address of a lease that has ended; its routes go with it.
func (d *DHCP) Drop() error {
	r, err := d.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	return errors.Join(d.drop(r), d.follow(dhcp.Lease{}))
}

func (d *DHCP) drop(r *netif.Socket) error {
	on, err := netif.ByName(r.Handle, d.If)
	if err == nil && on != nil {
		_, err = d.removeAddresses(r, on, netip.Prefix{})
	}
	return errors.Join(err, d.forget())
}

func (d *DHCP) forget() error {
	if err := os.Remove(d.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the lease of %s: %w", d.If, err)
	}
	return nil
}

// Verify reads the address back. Without a valid lease there is nothing to verify: the keeper asks for a new one then.
func (d *DHCP) Verify(context.Context) error {
	l := d.Lease()
	if l.State(dhcp.Now()) == dhcp.Ended {
		return nil
	}
	s, err := d.Inside.State()
	if err == nil && !slices.Contains(s.Address, l.Address.String()) {
		err = fmt.Errorf("%s in the node has %q, not %s, which is leased", d.If, s.Address, l.Address)
	}
	return err
}

// Undo gives the lease back if the namespace still exists, in one message that servers do not answer. It removes the
// address.
func (d *DHCP) Undo(context.Context) error {
	l := d.Lease()
	if l.State(dhcp.Now()) == dhcp.Ended {
		return d.forget()
	}
	r, err := d.Open()
	if netif.Absent(err) {
		return d.forget()
	}
	if err != nil {
		return err
	}
	defer r.Close()
	if c, _, err := d.client(r); err == nil {
		_ = c.Release(l) // if the server does not receive it, the lease ends with its time
		c.Close()
		fault.Point("lease given back")
	}
	return d.drop(r)
}
