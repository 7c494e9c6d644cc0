package nat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Bridge is the nat bridge on the host, with its addresses, its table of nftables and the right to forward. The first node
// of a root makes them and the last one takes them back. A folder has a symbolic link for each node that needs them.
type Bridge struct {
	Places  Places     `json:"places"`
	Node    string     `json:"node"`
	Live    string     `json:"live"` // the node's live folder: a node without it does not count
	Network Network    `json:"network"`
	V4      netip.Addr `json:"v4,omitzero"` // the node's; not valid in nodes of an older berth
}

// Kind implements step.Step.
func (b *Bridge) Kind() string { return "nat.bridge" }

func (b *Bridge) String() string {
	var all []string
	for _, g := range b.Network.Gateways() {
		all = append(all, g.String())
	}
	return fmt.Sprintf("%s on the host, %s; nftables table %s %s masquerades and forwards for %s, keeps nodes from the host's addresses (but DNS) and from 169.254.0.0/16; made with the first node and gone with the last",
		b.Places.Bridge, strings.Join(all, ", "), family, b.Places.Bridge, b.Network)
}

// bridgeMAC is the MAC by which Berth recognizes its own bridge. A fixed one also keeps the bridge from taking that of a port.
func bridgeMAC(name string) mac.Address { return mac.Derive("berth nat bridge 1\n" + name + "\n") }

// Do makes the parts that are missing.
func (b *Bridge) Do(ctx context.Context) error {
	lock, err := netif.Lock(ctx, b.Places.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.MkdirAll(b.Places.Run, 0o755); err != nil {
		return fmt.Errorf("note the user of bridge %s: %w", b.Places.Bridge, err)
	}
	if err := os.Symlink(b.Live, b.user()); err != nil && !errors.Is(err, fs.ErrExist) { // ErrExist: it is done again
		return fmt.Errorf("note the user of bridge %s: %w", b.Places.Bridge, err)
	}
	fault.Point("nat used")
	if err := b.link(); err != nil {
		return err
	}
	fault.Point("nat bridge up")
	lent, err := b.Places.borrow(b.Network.V6.IsValid())
	if err != nil {
		return err
	}
	if err := b.makeTable(ctx, table(b.Places.Bridge, b.Network, lent)); err != nil {
		return fmt.Errorf("make table %s: %w", b.Places.Bridge, err)
	}
	return nil
}

func (b *Bridge) user() string { return filepath.Join(b.Places.Run, b.Node) }

// link makes the bridge and gives it its addresses.
func (b *Bridge) link() error {
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	name := b.Places.Bridge
	l, err := netif.ByName(h, name)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", name, err)
	}
	if l == nil {
		l = &netlink.Bridge{LinkAttrs: netif.Attrs(name, 0, bridgeMAC(name))}
		if err := h.LinkAdd(l); err != nil {
			return fmt.Errorf("make bridge %s: %w", name, err)
		}
		fault.Point("nat bridge made")
	}
	if !isOwn(l) {
		return refuse.Busyf("link %s is there and not Berth's: remove or rename it", name)
	}
	if err := netif.NoLinkLocal(h, l); err != nil {
		return err
	}
	if err := h.LinkSetAlias(l, "berth: nodes of mode nat"); err != nil {
		return fmt.Errorf("mark bridge %s: %w", name, err)
	}
	for _, g := range b.addresses() {
		n := &net.IPNet{IP: g.Addr().AsSlice(), Mask: net.CIDRMask(g.Bits(), g.Addr().BitLen())}
		a := &netlink.Addr{IPNet: n}
		if g.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrReplace(l, a); err != nil {
			return fmt.Errorf("give bridge %s the address %s: %w", name, g, err)
		}
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set bridge %s up: %w", name, err)
	}
	return nil
}

// linkLocal is the source of the bridge's neighbour solicitations for packets that it forwards: without such an address the
// kernel sends none.
var linkLocal = netip.MustParsePrefix("fe80::1/64")

// addresses returns the addresses of the bridge.
func (b *Bridge) addresses() []netip.Prefix {
	all := b.Network.Gateways()
	if b.Network.V6.IsValid() {
		all = append(all, linkLocal)
	}
	return all
}

func isOwn(l netlink.Link) bool {
	return l.Type() == "bridge" && netif.MAC(l) == bridgeMAC(l.Attrs().Name)
}

// Verify reads the bridge and its table back.
func (b *Bridge) Verify(ctx context.Context) error {
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	name := b.Places.Bridge
	l, err := netif.ByName(h, name)
	switch {
	case err != nil:
		return fmt.Errorf("find bridge %s: %w", name, err)
	case l == nil || !isOwn(l):
		return fmt.Errorf("bridge %s is gone", name)
	case !netif.IsUp(l):
		return fmt.Errorf("bridge %s is down", name)
	}
	have, err := netif.Addresses(h, l)
	if err != nil {
		return err
	}
	for _, g := range b.addresses() {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool {
			ip, ok := netip.AddrFromSlice(a.IP)
			return ok && ip.Unmap() == g.Addr()
		}) {
			return fmt.Errorf("bridge %s has lost its address %s", name, g)
		}
	}
	rules, err := count(ctx, name)
	if absent(err) {
		return fmt.Errorf("table %s of nftables is gone", name)
	}
	if want := ruleCount(name, b.Network); err == nil && rules < want {
		err = fmt.Errorf("table %s of nftables has %d rules, not %d", name, rules, want)
	}
	return err
}

// Undo forgets which MAC the node had, and takes everything back if no other node needs it.
func (b *Bridge) Undo(ctx context.Context) error {
	if b.Node == "" { // killed before it was prepared
		return nil
	}
	lock, err := netif.Lock(ctx, b.Places.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.Remove(b.user()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the user of bridge %s: %w", b.Places.Bridge, err)
	}
	if err := b.Places.forget(b.Network, b.V4); err != nil {
		return err
	}
	return b.Places.sweep(ctx)
}

// forget drops the neighbour entries of the host for a node's addresses: the next node that gets them has another MAC.
func (p Places) forget(n Network, v4 netip.Addr) error {
	if !v4.IsValid() || !n.V4.IsValid() {
		return nil
	}
	h, l, err := p.own()
	if l == nil || err != nil {
		return err
	}
	defer h.Close()
	for _, a := range n.Of(v4) {
		err := h.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: a.Addr().AsSlice()})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("forget who had %s on bridge %s: %w", a.Addr(), p.Bridge, err)
		}
	}
	return nil
}

// own returns the bridge, with a socket that the caller closes; both are nil if it is not there, or is not Berth's.
func (p Places) own() (*netlink.Handle, netlink.Link, error) {
	h, err := netif.Host()
	if err != nil {
		return nil, nil, err
	}
	l, err := netif.ByName(h, p.Bridge)
	if err != nil {
		err = fmt.Errorf("find bridge %s: %w", p.Bridge, err)
	}
	if l == nil || err != nil || !isOwn(l) {
		h.Close()
		return nil, nil, err
	}
	return h, l, nil
}

// Sweep removes what no node needs any more, after nodes that ended without cleaning up.
func (p Places) Sweep(ctx context.Context) error {
	if _, err := os.Stat(p.Run); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := netif.Lock(ctx, p.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	return p.sweep(ctx)
}

// sweep removes table, settings and bridge unless a node needs them; last the folder of users, by which a killed sweep is
// found. The caller holds the host-wide lock.
func (p Places) sweep(ctx context.Context) error {
	users, err := p.users()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || len(users) > 0 {
		return err
	}
	if err := removeTable(ctx, p.Bridge); err != nil {
		return err
	}
	fault.Point("nat table removed")
	if err := p.giveBack(); err != nil {
		return err
	}
	h, l, err := p.own()
	if err != nil {
		return err
	}
	if l != nil {
		defer h.Close()
		if err := netif.Delete(h, l); err != nil {
			return err
		}
		fault.Point("nat bridge removed")
	}
	if err := os.RemoveAll(p.Run); err != nil {
		return fmt.Errorf("remove the folder of users of bridge %s: %w", p.Bridge, err)
	}
	return nil
}

// users returns the nodes that need the bridge: their live folders are there.
func (p Places) users() (names []string, err error) {
	entries, err := os.ReadDir(p.Run)
	if err != nil {
		return nil, fmt.Errorf("list the users of bridge %s: %w", p.Bridge, err)
	}
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(p.Run, e.Name())); err == nil { // it follows the link
			names = append(names, e.Name())
		}
	}
	return names, nil
}
