package vnode

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode"
)

func netField(i int, key string) string { return join(fmt.Sprintf("network[%d]", i), key) }

// longestIfname is the kernel's IFNAMSIZ minus its NUL.
const longestIfname = 15

func checkNetworkMode(r *report, n *Node) {
	for i, w := range n.Network {
		switch w.Mode {
		case None:
			checkNone(r, n, i)
		case SRIOV, Macvlan, Phys:
			if w.Parent == "" {
				r.badIf([]string{netField(i, "mode")}, netField(i, "parent"), "missing: mode %s needs the host's adapter", w.Mode)
			}
		}
		if w.Parent != "" && !isIfname(w.Parent) {
			r.bad(netField(i, "parent"), "%q is not the name of an interface: at most %d letters, no space, '/' or ':'", w.Parent, longestIfname)
		}
	}
}

// checkNone checks that mode none, which means only loopback, is used alone and without other keys.
func checkNone(r *report, n *Node, i int) {
	w := n.Network[i]
	if len(n.Network) > 1 {
		r.bad(netField(i, "mode"), "none stands alone: there are %d interfaces", len(n.Network))
	}
	var given []string
	for _, k := range []struct {
		key   string
		given bool
	}{
		{"name", w.Name != ""},
		{"parent", w.Parent != ""},
		{"mac", w.MAC != ""},
		{"dhcp", w.DHCP},
		{"address", len(w.Address) > 0},
		{"reserved", w.Reserved},
		{"gateway", w.Gateway != ""},
		{"routes", len(w.Routes) > 0},
		{"mtu", w.MTU != 0},
		{"vlan", w.VLAN != 0},
		{"rate", w.Rate != NetRate{}},
		{"ports", len(w.Ports) > 0},
		{"spoof", w.Spoof},
		{"priority", w.Priority != ""},
	} {
		if k.given {
			given = append(given, k.key)
		}
	}
	switch {
	case len(given) == 1:
		r.bad(netField(i, given[0]), "not allowed: mode none is only loopback and takes no other key")
	case len(given) > 1: // then the mode is more likely the mistake
		r.bad(netField(i, "mode"), "none is only loopback and takes no other key: here are %s", strings.Join(given, ", "))
	}
}

// isIfname follows the kernel's dev_valid_name.
func isIfname(s string) bool {
	return s != "" && len(s) <= longestIfname && s != "." && s != ".." && !strings.ContainsAny(s, "/:") &&
		!strings.ContainsFunc(s, unicode.IsSpace)
}

// checkNetworkNames is stricter than the kernel, so that a name can be part of a key: net.eth0.tx.
func checkNetworkNames(r *report, n *Node) {
	first := firstUse{}
	for i, w := range n.Network {
		if w.Mode == None {
			continue
		}
		switch {
		case !isName(w.Name, longestIfname):
			r.bad(netField(i, "name"), "%q is not a name for an interface: "+nameRule, w.Name, longestIfname)
		case w.Name == "lo":
			r.bad(netField(i, "name"), "%q is not allowed: every node has its own", w.Name)
		}
		first.check(r, "name", netField(i, "name"), w.Name)
	}
}

func checkMACs(r *report, n *Node) {
	first := firstUse{}
	for i, w := range n.Network {
		from, err := w.MACFrom()
		switch {
		case err != nil || !from.Given.IsZero() && !strings.Contains(w.MAC, ":"):
			r.bad(netField(i, "mac"), "%q is not allowed: auto, pool NAME or an address such as 02:00:5e:10:00:01", w.MAC)
		case strings.HasPrefix(w.MAC, poolPrefix):
			if !isName(from.Pool, longestName) {
				r.bad(netField(i, "mac"), "%q is not the name of a pool: "+nameRule, from.Pool, longestName)
			}
		case !from.Given.IsZero():
			if err := from.Given.Check(); err != nil {
				r.bad(netField(i, "mac"), "%q %s", w.MAC, err)
			}
			first.check(r, "mac", netField(i, "mac"), from.Given.String())
		}
	}
}

func checkAddresses(r *report, n *Node) {
	first := firstUse{}
	for i, w := range n.Network {
		if w.Reserved && len(w.Address) == 0 && w.Mode != None { // None: see checkNone
			r.badIf([]string{netField(i, "address")}, netField(i, "reserved"), "not without address: it says that nobody else has the addresses of the interface")
		}
		for j, a := range w.Address {
			field := netField(i, fmt.Sprintf("address[%d]", j))
			p, err := netip.ParsePrefix(a)
			if err != nil {
				r.bad(field, "%q is not an address with its prefix length, for example 192.0.2.10/24 or 2001:db8::10/64", a)
				continue
			}
			if why := notForHost(p); why != "" {
				r.bad(field, "%q is not an address for an interface: %s", a, why)
			}
			first.check(r, "address", field, p.Addr().String())
		}
	}
}

// notForHost returns why an interface cannot have an address; "" if it can.
func notForHost(p netip.Prefix) string {
	a := p.Addr()
	single := p.Bits() >= a.BitLen()-1 // /31 and /32 have no network or broadcast address (RFC 3021)
	switch {
	case a.Is4In6():
		return "write the IPv4 address inside"
	case a.IsUnspecified():
		return "it is no address"
	case a.IsMulticast():
		return "it is a multicast address"
	case a.IsLoopback():
		return "it is a loopback address"
	case p.Bits() == 0:
		return "a prefix of 0 bits is everything"
	case !single && p.Masked().Addr() == a:
		return "it is the network's own"
	case a.Is4() && !single && isBroadcast(p):
		return "it is the network's broadcast address"
	}
	return ""
}

func isBroadcast(p netip.Prefix) bool {
	next := p.Addr().Next()
	return !next.IsValid() || !p.Contains(next)
}

// prefixes returns those addresses of an interface that can be parsed, as prefixes.
func (w *Network) prefixes() []netip.Prefix {
	var ps []netip.Prefix
	for _, a := range w.Address {
		if p, err := netip.ParsePrefix(a); err == nil {
			ps = append(ps, p)
		}
	}
	return ps
}

// checkDHCP refuses an IPv4 address or gateway together with dhcp: the DHCP server gives both.
func checkDHCP(r *report, n *Node) {
	const not = "not together with dhcp: true, by which the server gives the IPv4 %s"
	for i, w := range n.Network {
		if !w.DHCP {
			continue
		}
		for j, a := range w.Address {
			if p, err := netip.ParsePrefix(a); err == nil && p.Addr().Is4() {
				r.bad(netField(i, fmt.Sprintf("address[%d]", j)), not, "address")
			}
		}
		if a, err := netip.ParseAddr(w.Gateway); err == nil && a.Is4() {
			r.bad(netField(i, "gateway"), not, "gateway")
		}
	}
}

// checkNeighbour requires an address that the interface reaches without a route: link-local, in one of its prefixes, or
// any IPv4 address with DHCP, whose prefix is not known yet.
func checkNeighbour(r *report, at int, field, s string, w *Network) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
		r.bad(field, "%q is not the address of a neighbour, for example 192.0.2.1", s)
		return a, false
	}
	restsOn := []string{netField(at, "address"), netField(at, "dhcp"), netField(at, "mode")}
	prefixes := w.prefixes()
	reached := a.IsLinkLocalUnicast() || w.DHCP && a.Is4() || len(prefixes) < len(w.Address) // a broken address is reported elsewhere
	for _, p := range prefixes {
		if p.Addr() == a {
			r.badIf(restsOn, field, "%s is the interface's own address", a)
			return a, false
		}
		reached = reached || p.Contains(a)
	}
	family := fmt.Sprint(at, len(prefixes) > 0 && a.Is4())
	if !reached && !r.unreached[family] { // report it once: the interface's address may be the mistake
		if r.unreached == nil {
			r.unreached = map[string]bool{}
		}
		r.unreached[family] = true
		r.badIf(restsOn, field, "%s is in none of the interface's prefixes: %s", a, orNone(w.Address))
	}
	return a, reached
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "it has no address"
	}
	return strings.Join(list, ", ")
}

func checkGateways(r *report, n *Node) {
	first := map[bool]string{} // by "is IPv4": field of the first default route
	for i := range n.Network {
		w := &n.Network[i]
		if w.Gateway == "" {
			continue
		}
		field := netField(i, "gateway")
		a, ok := checkNeighbour(r, i, field, w.Gateway, w)
		if !ok {
			continue
		}
		if at, twice := first[a.Is4()]; twice {
			r.bad(field, "a second default route: %s has one", at)
			continue
		}
		first[a.Is4()] = field
	}
}

func checkRoutes(r *report, n *Node) {
	first := firstUse{}
	for i := range n.Network {
		w := &n.Network[i]
		for j, route := range w.Routes {
			at := netField(i, fmt.Sprintf("routes[%d]", j))
			to, err := netip.ParsePrefix(route.To)
			toOK := err == nil && to.Masked() == to && !to.Addr().Is4In6()
			switch {
			case err == nil && to.Masked() != to:
				r.bad(at+".to", "%q has bits beyond its prefix: write %q", route.To, to.Masked())
			case !toOK:
				r.bad(at+".to", "%q is not a prefix, for example 198.51.100.0/24", route.To)
			case to.Bits() == 0:
				r.bad(at+".to", "%q is the default route: it is the key gateway", route.To)
			default:
				first.check(r, "to", at+".to", to.String())
			}
			via, ok := checkNeighbour(r, i, at+".via", route.Via, w)
			if ok && toOK && via.Is4() != to.Addr().Is4() {
				r.badIf([]string{at + ".to"}, at+".via", "%s and %s are not of one family", via, to)
			}
		}
	}
}

// checkMTU requires RFC 8200's least MTU on an interface with IPv6; with a smaller one the kernel disables IPv6 on it.
func checkMTU(r *report, n *Node) {
	const least6 = 1280
	for i := range n.Network {
		w := &n.Network[i]
		for _, p := range w.prefixes() {
			if p.Addr().Is6() && w.MTU > 0 && w.MTU < least6 {
				r.badIf([]string{netField(i, "address")}, netField(i, "mtu"), "%d is too small for the IPv6 address %s: at least %d", w.MTU, p, least6)
				break
			}
		}
	}
}

// checkVLAN refuses a VLAN where Berth does not set it: the id needs an adapter or a bridge that keeps VLANs apart.
func checkVLAN(r *report, n *Node) {
	for i, w := range n.Network {
		rests, field := []string{netField(i, "mode"), netField(i, "parent")}, netField(i, "vlan")
		switch {
		case w.VLAN == 0 || w.Mode == SRIOV || w.Mode == Macvlan || w.Mode == None: // None: see checkNone
		case w.Mode == Bridge && w.Parent == "":
			r.badIf(rests, field, "not allowed without a parent: the bridge between the nodes of this host has no VLANs")
		case w.Mode != Bridge:
			r.badIf(rests, field, "not with mode %s: sriov, macvlan, or bridge with a parent", w.Mode)
		}
	}
}
