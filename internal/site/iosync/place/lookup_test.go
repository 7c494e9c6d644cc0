package place

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// TestLookup: an address is a node's if it is told, or if it has the second half of a link-local one that is, made of a MAC.
func TestLookup(t *testing.T) {
	l := layout.New(t.TempDir())
	dir := filepath.Join(Dir(l, "shared"), "addresses")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Lookup(l, "shared", netip.MustParseAddr("192.0.2.1")); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("a file system that is not served: %v", err)
	}
	for address, node := range map[string]string{"192.0.2.1": "a", "fe80::5eff:fe10:1": "a", "2001:db8::5eff:fe10:1": "b", "fe80::1": "c"} {
		if err := os.Symlink(node, filepath.Join(dir, address)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(Dir(l, "shared"), "generation"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		"192.0.2.1": "a", "::ffff:192.0.2.1": "a", "192.0.2.2": "", "fe80::5eff:fe10:1%eth0": "a", "2001:db8:9::5eff:fe10:1": "a", "2001:db8:9:9:0:5eff:fe10:1": "a",
		"2001:db8::5eff:fe10:1": "b", "fe80::2": "",
		"fe80::1": "c", "2001:db8::1": "", "::1": "",
	} {
		got, ok, err := Lookup(l, "shared", netip.MustParseAddr(address))
		if got != want || ok != (want != "") || err != nil {
			t.Errorf("%s is of %q, %v, %v; want %q", address, got, ok, err, want)
		}
	}
}
