package nat

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Facts are the facts about the host that the plan of a node of mode nat needs.
type Facts struct {
	Network Network
	Address netip.Addr        // the node's address, or the one that it would get
	NoIPv6  string            // the setting of the host that keeps IPv6 from the bridge, though the network has it: its name; not read while the node runs
	Overlap string            // a route of the host that overlaps the network: "10.0.0.0/8 over eth0"
	NoTool  error             // why there is no nft
	Taken   map[string]string // by entry of ports: the other node that has one of its ports
	Hinders []Hindrance       // chains of other tables of nftables that drop the node's packets; not read while the node runs
	Foreign map[string]string // by entry of ports: the host's addresses, if it names another one
}

// ReadFacts reads the facts for one network of a node. Ports that the host's sockets have do not count while the node runs:
// they may be the node's own relay.
func (p Places) ReadFacts(ctx context.Context, node string, n vnode.Network, running bool) (f Facts, err error) {
	if _, f.NoTool = findNFT(); f.NoTool != nil {
		return f, nil //nolint:nilerr // a fact: the plan refuses the node
	}
	if f.Network, err = p.Network(); err != nil {
		return f, err
	}
	owner := node + "/" + n.Name
	if f.Address, err = p.Free(f.Network, owner); err != nil {
		return f, err
	}
	r, err := p.routes()
	if err != nil {
		return f, err
	}
	f.Overlap = r.overlap(f.Network)
	if f.Network.V6.IsValid() && !running {
		f.NoIPv6 = p.noIPv6()
	}
	if !running {
		rules, err := readForeign(ctx, p.Bridge)
		if err != nil {
			return f, err
		}
		f.Hinders = rules.hindrances(p.Bridge, f.Network, len(n.Ports) > 0)
	}
	if len(n.Ports) == 0 {
		return f, nil
	}
	own, err := ownAddresses()
	if err != nil {
		return f, err
	}
	f.Taken, f.Foreign = map[string]string{}, map[string]string{}
	var bound []socket
	if !running {
		if bound, err = sockets(); err != nil {
			return f, err
		}
	}
	for _, port := range n.Published() {
		key := port.String()
		if a := port.Address; a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !slices.Contains(own, a) {
			f.Foreign[key] = join(own)
		}
		if who := p.PortOwner(port, owner); who != "" {
			f.Taken[key] = "node " + who
		} else if i := slices.IndexFunc(bound, func(s socket) bool { return port.Takes(s.address, s.proto, s.port) }); i >= 0 {
			f.Taken[key] = bound[i].who()
		}
	}
	return f, nil
}

func join(addrs []netip.Addr) string {
	var all []string
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return strings.Join(all, ", ")
}

// Check refuses a network that this host cannot have. It is pure.
func (f Facts) Check(n vnode.Network) error {
	if f.NoTool != nil {
		return f.NoTool
	}
	if f.NoIPv6 != "" {
		return refuse.Cannotf("sysctl -w "+f.NoIPv6+"=0; or remove all nodes of mode nat (berth rm): the next one gets a network of IPv4 alone",
			"network %s: the host has IPv6 off (%s), and the network of mode nat has IPv6 since its first node: %s", n.Name, f.NoIPv6, f.Network)
	}
	if f.Overlap != "" {
		return refuse.Cannotf("remove the route, or all nodes of mode nat (berth rm): the next one gets another network",
			"network %s: the network of mode nat, %s, overlaps a route of the host: %s", n.Name, f.Network, f.Overlap)
	}
	if len(f.Hinders) > 0 {
		var what, remedy []string
		for _, h := range f.Hinders {
			what = append(what, h.Chain+" drops "+h.Drops)
			for _, line := range h.Remedy {
				if !slices.Contains(remedy, line) {
					remedy = append(remedy, line)
				}
			}
		}
		return refuse.Cannotf(strings.Join(remedy, " && "), "network %s: the host's firewall does not let mode nat work, and Berth does not change it: %s",
			n.Name, strings.Join(what, "; "))
	}
	for _, p := range n.Published() {
		key := p.String()
		if who := f.Taken[key]; who != "" {
			return portTaken(key, who)
		}
		if own, foreign := f.Foreign[key]; foreign {
			return refuse.Cannotf("leave the address out, or name one of "+own, "network %s: port %s: the host has no address %s", n.Name, key, p.Address)
		}
	}
	return nil
}

// Held returns the addresses that an owner, NODE/IFNAME, has claimed; none if it has not.
func (p Places) Held(owner string) (c ClaimAddress, ok bool) {
	if p.stored().Read(&c.Network) != nil {
		return c, false
	}
	taken, _ := p.claimed() // without an index there is none
	for a, who := range taken {
		if who == owner {
			c.V4 = a
			return c, true
		}
	}
	return c, false
}

// ownAddresses returns the addresses of the host's interfaces but loopback and link-local ones.
func ownAddresses() ([]netip.Addr, error) {
	all, err := hostAddresses()
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return a.IsLoopback() || a.IsLinkLocalUnicast() }), err
}

// hostAddresses returns all addresses of the host's interfaces.
func hostAddresses() ([]netip.Addr, error) {
	h, err := netif.Host()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list, err := netif.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			all = append(all, ip.Unmap())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all, nil
}
