package nat

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// sizeV4 is the prefix length of the IPv4 network: with 1,021 nodes it holds about as many as a bridge has ports.
const sizeV4 = 22

// addresses is the index of claimed addresses: a folder with a symbolic link for each.
func (p Places) addresses() string { return filepath.Join(p.Lib, "addresses") }

// PortIndex is the index of claimed ports.
func (p Places) PortIndex() string { return filepath.Join(p.Lib, "ports") }

// Indexes are the folders of claims, for address.Claimants and address.Release.
func (p Places) Indexes() []string { return []string{p.addresses(), p.PortIndex()} }

func (p Places) stored() jsonfile.File {
	return jsonfile.File{
		Path: filepath.Join(p.Lib, "network"), Is: "the private network of the nodes of mode nat",
		Remedy: "berth repair writes it anew if a node of mode nat is there; if there is none, remove the file",
	}
}

// Restore writes the stored network anew, as a node that has an address of it knows it, if it cannot be read.
func (p Places) Restore(n Network) (did bool, err error) {
	if _, damaged := errors.AsType[*refuse.Error](p.stored().Read(new(Network))); !damaged {
		return false, nil
	}
	return true, file.WriteJSON(p.stored().Path, n)
}

// Network returns the private network: the stored one, else one that overlaps no route of the host. A stored network of
// which no node has an address is chosen again if a route overlaps it by now, or IPv6 was switched off. Network writes nothing.
func (p Places) Network() (Network, error) {
	var n Network
	err := p.stored().Read(&n)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	taken, routesErr := p.routes()
	if routesErr != nil {
		return n, routesErr
	}
	if err == nil {
		users, err := address.Claimants(p.addresses())
		if err != nil || len(users) > 0 || taken.overlap(n) == "" && (!n.V6.IsValid() || p.noIPv6() == "") {
			return n, err
		}
	}
	return p.choose(taken)
}

func (p Places) choose(taken routes) (n Network, err error) {
	for c := range candidates() {
		if n.V4 = c; taken.overlap(n) == "" {
			break
		}
		n.V4 = netip.Prefix{}
	}
	if !n.V4.IsValid() {
		return n, refuse.Cannotf("name a bridge of yours as parent, with mode bridge, or use mode macvlan",
			"mode nat: the host's routes leave no private IPv4 network of %d bits", sizeV4)
	}
	if p.noIPv6() != "" {
		return n, nil
	}
	for i := range 16 {
		if n.V6 = p.unique(i); taken.overlap(Network{V6: n.V6}) == "" {
			return n, nil
		}
	}
	return n, refuse.Cannotf("remove routes in fd00::/8", "mode nat: the host's routes leave no private IPv6 network")
}

// candidates yields the IPv4 networks that Berth may take, best first: those that other engines do not take by default.
func candidates() iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for _, wide := range []string{"10.210.0.0/15", "172.28.0.0/14", "10.128.0.0/9", "192.168.128.0/17", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"} {
			w := netip.MustParsePrefix(wide)
			for c := netip.PrefixFrom(w.Addr(), sizeV4); w.Contains(c.Addr()); {
				if !yield(c) {
					return
				}
				next := at(netip.PrefixFrom(c.Addr(), w.Bits()), number(w, c.Addr())+1<<(32-sizeV4)).Addr()
				if next.Less(c.Addr()) {
					break
				}
				c = netip.PrefixFrom(next, sizeV4)
			}
		}
	}
}

// unique derives a unique local IPv6 network (RFC 4193) from the site and the bridge.
func (p Places) unique(attempt int) netip.Prefix {
	sum := sha256.Sum256(fmt.Appendf(nil, "berth nat 1\n%s\n%s\n%d\n", p.SiteID, p.Bridge, attempt))
	a := [16]byte{0: 0xfd}
	copy(a[1:8], sum[:])
	return netip.PrefixFrom(netip.AddrFrom16(a), 64)
}

// noIPv6 returns the setting that keeps IPv6 from the bridge: of all interfaces, or of new ones; "" if it has IPv6, or can have it. A kernel
// without IPv6 has none to change: its command line has.
func (p Places) noIPv6() string {
	if file.Text(sysctlFile("ipv6/conf/"+p.Bridge+"/disable_ipv6")) == "0" {
		return "" // it was there before new ones were kept from it
	}
	for _, conf := range []string{"all", "default"} {
		if file.Text(sysctlFile("ipv6/conf/"+conf+"/disable_ipv6")) != "0" {
			return "net.ipv6.conf." + conf + ".disable_ipv6"
		}
	}
	return ""
}

// routes maps the host's prefixes to the link that they lead over. Those of the nat bridge itself and the default routes are
// left out.
type routes map[netip.Prefix]string

func (p Places) routes() (routes, error) {
	h, err := netif.Host()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	// Table 0 with this filter means all tables.
	list, err := netif.Dump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	links, err := netif.List(h)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	all := routes{}
	for _, r := range list {
		if r.Dst == nil || names[r.LinkIndex] == p.Bridge {
			continue
		}
		a, ok := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		if !ok || ones == 0 {
			continue
		}
		if r.Dst.IP.To4() != nil {
			a = a.Unmap()
		}
		all[netip.PrefixFrom(a, ones)] = names[r.LinkIndex]
	}
	return all, nil
}

// overlap describes a route that overlaps a network; "" if none does.
func (r routes) overlap(n Network) string {
	for p, dev := range r {
		for _, own := range []netip.Prefix{n.V4, n.V6} {
			if own.IsValid() && own.Overlaps(p) {
				return fmt.Sprintf("%s over %s", p, dev)
			}
		}
	}
	return ""
}
