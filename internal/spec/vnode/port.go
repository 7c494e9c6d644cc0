package vnode

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Port is an entry of the ports of a network: ports of the host, and those of the node that they lead to.
type Port struct {
	Address netip.Addr // of the host; not valid: all addresses
	Proto   string     // tcp | udp
	Host    uint16     // first port of the host
	Node    uint16     // first port of the node
	Count   int        // how many ports, one after the other
}

// String returns the entry in its shortest form.
func (p Port) String() string {
	s := ports(p.Host, p.Count) + ":" + ports(p.Node, p.Count) + "/" + p.Proto
	switch {
	case !p.Address.IsValid():
		return s
	case p.Address.Is6():
		return "[" + p.Address.String() + "]:" + s
	}
	return p.Address.String() + ":" + s
}

func ports(first uint16, count int) string {
	if count == 1 {
		return strconv.Itoa(int(first))
	}
	return fmt.Sprintf("%d-%d", first, int(first)+count-1)
}

// Takes reports whether the entry takes this port of the host. bound is the address of a socket.
func (p Port) Takes(bound netip.Addr, proto string, port uint16) bool {
	return p.Overlaps(Port{Address: bound, Proto: proto, Host: port, Count: 1})
}

// Overlaps reports whether two entries take the same port of the host. An unspecified IPv6 address stands for both
// families, as that of a socket does.
func (p Port) Overlaps(o Port) bool {
	if p.Proto != o.Proto || int(p.Host)+p.Count <= int(o.Host) || int(o.Host)+o.Count <= int(p.Host) {
		return false
	}
	return covers(p.Address, o.Address) || covers(o.Address, p.Address)
}

func covers(a, b netip.Addr) bool {
	return !a.IsValid() || a == netip.IPv6Unspecified() || a == b || a.IsUnspecified() && (!b.IsValid() || b.Is4())
}

// ParsePort reads an entry such as 8080:80, 127.0.0.1:8080:80, [::1]:53:53/udp or 8000-8010:8000-8010/tcp.
func ParsePort(s string) (Port, error) {
	p := Port{Proto: "tcp"}
	rest, proto, given := strings.Cut(s, "/")
	if given {
		p.Proto = proto
	}
	if p.Proto != "tcp" && p.Proto != "udp" {
		return p, fmt.Errorf("%q: %q is not tcp or udp", s, proto)
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return p, fmt.Errorf("%q is not [ADDRESS:]PORT OF THE HOST:PORT OF THE NODE[/udp], for example 8080:80", s)
	}
	host, node := rest[:i], rest[i+1:]
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		text := host[:i]
		if inner, ok := strings.CutPrefix(text, "["); ok {
			text = strings.TrimSuffix(inner, "]")
		} else if strings.Contains(text, ":") {
			return p, fmt.Errorf("%q: write an IPv6 address in brackets: [%s]", s, text)
		}
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() || a.IsMulticast() || a.IsLinkLocalUnicast() {
			return p, fmt.Errorf("%q: %q is not an address of the host", s, text)
		}
		p.Address, host = a, host[i+1:]
	}
	var err error
	if p.Host, p.Count, err = parsePorts(host); err != nil {
		return p, fmt.Errorf("%q: %w", s, err)
	}
	var count int
	if p.Node, count, err = parsePorts(node); err != nil {
		return p, fmt.Errorf("%q: %w", s, err)
	}
	if count != p.Count {
		return p, fmt.Errorf("%q: %d ports of the host and %d of the node", s, p.Count, count)
	}
	return p, nil
}

// parsePorts reads a port, or a range of them.
func parsePorts(s string) (first uint16, count int, err error) {
	low, high, isRange := strings.Cut(s, "-")
	if !isRange {
		high = low
	}
	f, err := parsePort(low)
	if err != nil {
		return 0, 0, err
	}
	l, err := parsePort(high)
	if err != nil {
		return 0, 0, err
	}
	if l < f {
		return 0, 0, fmt.Errorf("%s ends before it begins", s)
	}
	return f, int(l-f) + 1, nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || strings.HasPrefix(s, "+") || strings.HasPrefix(s, "0") {
		return 0, fmt.Errorf("%q is not a port, 1 to 65535", s)
	}
	return uint16(n), nil
}

// Published returns the entries of the network's ports; those that cannot be read are left out.
func (w *Network) Published() (all []Port) {
	for _, s := range w.Ports {
		if p, err := ParsePort(s); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// checkPorts checks which ports are published, and that no entry takes a port of another.
func checkPorts(r *report, n *Node) {
	type taken struct {
		Port
		field string
	}
	var before []taken
	for i, w := range n.Network {
		if len(w.Ports) > 0 && w.Mode != NAT {
			r.badIf([]string{netField(i, "mode")}, netField(i, "ports"), "ports are published by mode nat; with mode %s the node's addresses are reached directly", w.Mode)
		}
		for j, s := range w.Ports {
			field := netField(i, fmt.Sprintf("ports[%d]", j))
			p, err := ParsePort(s)
			if err != nil {
				r.bad(field, "%s", err)
				continue
			}
			for _, b := range before {
				if p.Overlaps(b.Port) {
					r.bad(field, "%q takes a port of the host that %s takes too", s, b.field)
					break
				}
			}
			before = append(before, taken{p, field})
		}
	}
}

// checkNAT refuses fields that mode nat decides itself, and a second default route.
func checkNAT(r *report, n *Node) {
	first := -1
	for i, w := range n.Network {
		if w.Mode != NAT {
			continue
		}
		if first >= 0 {
			r.bad(netField(i, "mode"), "a second network of mode nat: %s is one, and each brings a default route", netField(first, "mode"))
			continue
		}
		first = i
		for _, k := range []struct {
			key   string
			given bool
			why   string
		}{
			{"parent", w.Parent != "", "the bridge is Berth's own; with a bridge of yours the mode is bridge"},
			{"address", len(w.Address) > 0, "Berth gives the addresses, and they stay until berth rm"},
			{"gateway", w.Gateway != "", "Berth sets the default route"},
			{"dhcp", w.DHCP, "Berth gives the addresses, and they stay until berth rm"},
			{"routes", len(w.Routes) > 0, "everything goes over the default route"},
			{"vlan", w.VLAN != 0, "the bridge leads to no adapter"},
		} {
			if k.given {
				r.badIf([]string{netField(i, "mode")}, netField(i, k.key), "not allowed with mode nat: %s", k.why)
			}
		}
		for j, o := range n.Network {
			if o.Mode != NAT && o.Gateway != "" {
				r.bad(netField(j, "gateway"), "a second default route: %s of mode nat brings one", netField(i, "mode"))
			}
		}
	}
}
