package names

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/vnode"
)

func TestFiles(t *testing.T) {
	const loopback = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	net := func(all ...string) []vnode.Network { return []vnode.Network{{Address: all}} }
	for _, c := range []struct {
		name           string
		node           vnode.Node
		hosts, itsName string
	}{
		{"no network", vnode.Node{Name: "wn"}, "127.0.1.1\twn\n", "wn\n"},
		{"dhcp", vnode.Node{Name: "wn", Network: []vnode.Network{{DHCP: true}}}, "127.0.1.1\twn\n", "wn\n"},
		{"addresses", vnode.Node{Name: "wn", Network: append(net("192.0.2.10/24", "2001:db8::10/64"), net("198.51.100.1/24")...)}, "192.0.2.10\twn\n198.51.100.1\twn\n2001:db8::10\twn\n", "wn\n"},
		{"IPv6 alone", vnode.Node{Name: "wn", Network: net("2001:db8::10/64")}, "127.0.1.1\twn\n2001:db8::10\twn\n", "wn\n"},
		{"full name", vnode.Node{Name: "wn-1", Hostname: "wn.example.org", Network: net("192.0.2.10/24")}, "192.0.2.10\twn.example.org wn wn-1\n", "wn.example.org\n"},
		{"localhost", vnode.Node{Name: "wn-1", Hostname: "localhost", Network: net("192.0.2.10/24")}, "192.0.2.10\twn-1\n", "localhost\n"},
		{"localhost alone", vnode.Node{Name: "localhost", Network: net("192.0.2.10/24")}, "", "localhost\n"},
		{"localhost in a domain", vnode.Node{Name: "wn-1", Hostname: "localhost.example.org"}, "127.0.1.1\tlocalhost.example.org wn-1\n", "localhost.example.org\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := []File{{"hosts", loopback + c.hosts}, {"hostname", c.itsName}, {"resolv.conf", "r"}}
			if diff := cmp.Diff(want, Files(&c.node, "r")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestResolver(t *testing.T) {
	const head = "# of the host, without servers at its own loopback\n"
	for _, c := range []struct{ name, etc, resolved, want string }{
		{"plain", "# a comment\nsearch example.org\nnameserver 192.0.2.1\nnameserver 127.0.0.1\nnameserver ::1\noptions  edns0\n", "", "search example.org\nnameserver 192.0.2.1\noptions edns0\n"},
		{"systemd-resolved", "nameserver 127.0.0.53\noptions trust-ad\n", "nameserver 192.0.2.2\nsearch example.org\n", "nameserver 192.0.2.2\nsearch example.org\n"},
		{"loopback alone", "nameserver 127.0.0.1\nsearch example.org\n", "", "search example.org\n"},
		{"nothing", "", "", ""},
		{"mapped and scoped", "nameserver ::ffff:127.0.0.1\nnameserver fe80::1%eth0\nnameserver 0.0.0.0\nnameserver what\n\x1b[2J evil\n", "", "nameserver fe80::1%eth0\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range map[string]string{"etc/resolv.conf": c.etc, "run/systemd/resolve/resolv.conf": c.resolved} {
				if text == "" {
					continue
				}
				file := filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(head+c.want, Resolver(root)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBehind(t *testing.T) {
	got := Behind("# of the host\ndomain a.example\nsearch b.example c.example\nnameserver 192.0.2.1\noptions edns0\n", netip.MustParseAddr("10.210.0.1"), "berth")
	want := "# names of nodes, and the host's resolvers behind them\nnameserver 10.210.0.1\nsearch berth b.example c.example\noptions edns0\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
