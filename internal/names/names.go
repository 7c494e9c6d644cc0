// Package names writes the files by which the programs of a node know its name and how names are looked up: /etc/hosts,
// /etc/hostname and /etc/resolv.conf. It is pure but for Resolver.
package names

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/vnode"
)

// File is a file of a node, by its name in /etc.
type File struct{ Name, Text string }

// Files are the node's own files; resolver is what Resolver returned.
func Files(n *vnode.Node, resolver string) []File {
	return []File{{"hosts", hosts(n)}, {"hostname", n.Host() + "\n"}, {"resolv.conf", resolver}}
}

// hosts names the loopback, and the node at each of its addresses. A node without an IPv4 address in its spec, by DHCP too,
// finds itself at 127.0.1.1, as Debian has it: a program that looks up its own name gets an answer.
func hosts(n *vnode.Node) string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	own := names(n)
	var v4, v6 []string
	for _, net := range n.Network {
		for _, a := range net.Address {
			p, err := netip.ParsePrefix(a)
			switch {
			case err != nil: // the spec's checks refuse it
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

// names are what a node is called: its host name in full first, so that hostname -f prints it, then the short one, then the
// name that Berth knows it by.
func names(n *vnode.Node) string {
	all := []string{n.Host()}
	short, _, _ := strings.Cut(n.Host(), ".")
	for _, name := range []string{short, n.Name} {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return strings.Join(all, " ")
}

// Resolver returns a resolv.conf for nodes: the host's below root ("/" but in tests), without the servers that are the host
// itself, because a node's loopback is its own. Where the host asks a resolver of its own, systemd-resolved's list of
// the servers behind it is read instead.
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

// usable reads a resolv.conf and leaves out loopback servers and comments. It also counts the servers that are left.
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
