package vnode

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParsePort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"8080:80":                   "8080:80/tcp",
		"8080:80/udp":               "8080:80/udp",
		"127.0.0.1:8080:80/tcp":     "127.0.0.1:8080:80/tcp",
		"[::1]:53:53/udp":           "[::1]:53:53/udp",
		"8000-8010:9000-9010":       "8000-8010:9000-9010/tcp",
		"0.0.0.0:1-65535:1-65535":   "0.0.0.0:1-65535:1-65535/tcp",
		"80":                        `"80" is not [ADDRESS:]PORT OF THE HOST:PORT OF THE NODE[/udp], for example 8080:80`,
		"80:0":                      `"80:0": "0" is not a port, 1 to 65535`,
		"65536:80":                  `"65536:80": "65536" is not a port, 1 to 65535`,
		"80:http":                   `"80:http": "http" is not a port, 1 to 65535`,
		"+80:80":                    `"+80:80": "+80" is not a port, 1 to 65535`,
		"80:80/sctp":                `"80:80/sctp": "sctp" is not tcp or udp`,
		"80:80/":                    `"80:80/": "" is not tcp or udp`,
		"8000-8010:80":              `"8000-8010:80": 11 ports of the host and 1 of the node`,
		"8010-8000:8010-8000":       `"8010-8000:8010-8000": 8010-8000 ends before it begins`,
		"::1:80:80":                 `"::1:80:80": write an IPv6 address in brackets: [::1]`,
		"host:80:80":                `"host:80:80": "host" is not an address of the host`,
		"224.0.0.1:80:80":           `"224.0.0.1:80:80": "224.0.0.1" is not an address of the host`,
		"[::ffff:192.0.2.1]:80:80":  `"[::ffff:192.0.2.1]:80:80": "::ffff:192.0.2.1" is not an address of the host`,
		"[fe80::1%eth0]:80:80":      `"[fe80::1%eth0]:80:80": "fe80::1%eth0" is not an address of the host`,
		"169.254.169.254:8080:8080": `"169.254.169.254:8080:8080": "169.254.169.254" is not an address of the host`,
	} {
		p, err := ParsePort(text)
		got := p.String()
		if err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// TestPortsOverlap compares Overlaps with the ports and addresses counted one by one.
func TestPortsOverlap(t *testing.T) {
	t.Parallel()
	addresses := []string{"", "0.0.0.0", "::", "127.0.0.1", "192.0.2.1", "::1"}
	one := rapid.Custom(func(t *rapid.T) Port {
		p := Port{Proto: rapid.SampledFrom([]string{"tcp", "udp"}).Draw(t, "proto"), Count: rapid.IntRange(1, 4).Draw(t, "count")}
		p.Host, p.Node = rapid.Uint16Range(1, 8).Draw(t, "host"), 1
		p.Address, _ = netip.ParseAddr(rapid.SampledFrom(addresses).Draw(t, "address")) // "": not valid
		return p
	})
	takes := func(p Port, proto string, port int, a netip.Addr) bool {
		all := !p.Address.IsValid() || p.Address == netip.IPv6Unspecified() || p.Address.IsUnspecified() && a.Is4()
		return p.Proto == proto && int(p.Host) <= port && port < int(p.Host)+p.Count && (all || p.Address == a)
	}
	rapid.Check(t, func(t *rapid.T) {
		p, o := one.Draw(t, "one"), one.Draw(t, "other")
		want := false
		for port := 1; port < 16; port++ {
			for _, a := range []string{"127.0.0.1", "192.0.2.1", "198.51.100.1", "::1", "2001:db8::1"} {
				a := netip.MustParseAddr(a)
				want = want || takes(p, p.Proto, port, a) && takes(o, p.Proto, port, a)
			}
		}
		if p.Overlaps(o) != want || o.Overlaps(p) != want {
			t.Fatalf("%s and %s: %v", p, o, p.Overlaps(o))
		}
		again, err := ParsePort(p.String())
		if err != nil || again != p {
			t.Fatalf("%s is read as %s: %v", p, again, err)
		}
	})
}

func TestPortErrorsAreShort(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`[0-9:.\[\]/a-z-]{0,20}`).Draw(t, "text")
		if _, err := ParsePort(s); err != nil && !strings.Contains(err.Error(), s) {
			t.Fatalf("%q: %v", s, err)
		}
	})
}
