// Package names makes the files by which programs of a node learn its name and look up names: /etc/hosts, /etc/hostname
// and /etc/resolv.conf. Only Resolver does I/O.
package names

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/spec/vnode"
)

// File is a file of a node, by its name in /etc.
type File struct{ Name, Text string }

// Files returns the node's own files. resolver is the result of Resolver.
func Files(n *vnode.Node, resolver string) []File {
	return []File{{"hosts", hosts(n)}, {"hostname", n.Host() + "\n"}, {"resolv.conf", resolver}}
}

// hosts returns /etc/hosts: the loopback names, and the node's names at each of its addresses. A node without an IPv4
// address in its spec (also with DHCP) gets 127.0.1.1, as on Debian, so that a program can look up its own name.
func hosts(n *vnode.Node) string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	own := names(n)
	if own == "" {
		return b.String()
	}
	var v4, v6 []string
	for _, net := range n.Network {
		for _, a := range net.Address {
			p, err := netip.ParsePrefix(a)
			switch {
			case err != nil: // Validate refuses it
			case p.Addr().Is4():
				v4 = append(v4, p.Addr().String())
			default:
				v6 = append(v6, p.Addr().String())
			}
		}
	}
	if len(v4) == 0 {
		v4 = []string{"127.0.1.1"}
	}
	for _, a := range append(v4, v6...) {
		b.WriteString(a + "\t" + own + "\n")
	}
	return b.String()
}

// names returns the names of a node: first its full host name, so that hostname -f prints it, then the short one, then
// its name in Berth. The loopback names are none of them: programs that connect to localhost mean the loopback address
// (RFC 6761), whatever a node is called.
func names(n *vnode.Node) string {
	var all []string
	short, _, _ := strings.Cut(n.Host(), ".")
	for _, name := range []string{n.Host(), short, n.Name} {
		if !slices.Contains(all, name) && !slices.Contains(loopback, name) {
			all = append(all, name)
		}
	}
	return strings.Join(all, " ")
}

var loopback = []string{"localhost", "ip6-localhost", "ip6-loopback"}

// Others returns the names of a node besides its name in Berth.
func Others(n *vnode.Node) []string {
	return slices.DeleteFunc(strings.Fields(names(n)), func(s string) bool { return s == n.Name })
}

// Behind returns the resolv.conf of a node that asks its bridge. Names are looked up in the zone of nodes first, then in the
// domains of the host's resolv.conf, which is the result of Resolver.
func Behind(resolver string, bridge netip.Addr, zone string) string {
	search, rest := []string{zone}, ""
	for line := range strings.Lines(resolver) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "search" || f[0] == "domain": // the last such line counts
			search = append([]string{zone}, f[1:]...)
		case f[0] == "options":
			rest += line
		}
	}
	return "# names of nodes, and the host's resolvers behind them\nnameserver " + bridge.String() + "\nsearch " + strings.Join(search, " ") + "\n" + rest
}

// Resolver returns a resolv.conf for nodes: the host's, without servers on its loopback, which a node cannot reach. If
// none are left, the list of systemd-resolved's upstream servers is read instead. root is "/" except in tests.
func Resolver(root string) string {
	const head = "# of the host, without servers at its own loopback\n"
	text, servers := usable(filepath.Join(root, "etc/resolv.conf"))
	if servers == 0 {
		if t, n := usable(filepath.Join(root, "run/systemd/resolve/resolv.conf")); n > 0 {
			text = t
		}
	}
	return head + text
}

// usable reads a resolv.conf without loopback servers and comments, and counts the remaining servers.
func usable(file string) (text string, servers int) {
	b, err := os.ReadFile(file)
	if err != nil || len(b) > 8<<10 {
		return "", 0
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 || !slices.Contains([]string{"nameserver", "search", "domain", "options", "sortlist"}, f[0]) {
			continue
		}
		if f[0] == "nameserver" {
			a, err := netip.ParseAddr(f[1])
			if err != nil || a.IsLoopback() || a.Is4In6() && a.Unmap().IsLoopback() || a.IsUnspecified() {
				continue
			}
			servers++
		}
		text += strings.Join(f, " ") + "\n"
	}
	return text, servers
}
