package nat

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestForwardingOfOlderKernels changes and gives back the settings that a kernel without force_forwarding needs: interfaces
// that accept router advertisements keep doing so.
func TestForwardingOfOlderKernels(t *testing.T) {
	b := newBed(t)
	b.sh("echo 0 >/proc/sys/net/ipv6/conf/up1/accept_ra")
	before := b.settings()
	want, err := wantedForwarding(b.Bridge, true, false)
	if err != nil {
		t.Fatal(err)
	}
	l := &loan{Was: want}
	for _, s := range want {
		if err := s.write(s.New); err != nil {
			t.Fatal(err)
		}
	}
	during := b.settings()
	for _, line := range []string{"ipv6/conf/up0/accept_ra:2", "ipv6/conf/up1/accept_ra:0", "ipv6/conf/all/forwarding:1", "ipv4/conf/up1/forwarding:1", "ipv4/conf/all/forwarding:0"} {
		if !strings.Contains(during, line+"\n") {
			t.Errorf("while nodes run there is no %s in\n%s", line, during)
		}
	}
	if diff := cmp.Diff([]string{"up0", "up1"}, l.lent()); diff != "" {
		t.Errorf("interfaces that forward because of Berth: %s", diff)
	}
	l.giveBack()
	if diff := cmp.Diff(before, b.settings()); diff != "" {
		t.Errorf("settings given back (-before +after):\n%s", diff)
	}
}

// TestForwardingOfTwoRoots gives the settings back with the last root, and leaves what somebody else switched on.
func TestForwardingOfTwoRoots(t *testing.T) {
	b := newBed(t)
	b.sh("echo 1 >/proc/sys/net/ipv4/conf/up1/forwarding")
	before := b.settings()
	other := b.Places
	other.Run += "2"
	for _, p := range []Places{b.Places, other} {
		if err := os.MkdirAll(p.Run, 0o755); err != nil {
			t.Fatal(err)
		}
		if lent, err := p.borrow(true); err != nil || cmp.Diff([]string{"up0", "up1"}, lent) != "" {
			t.Fatal(lent, err)
		}
	}
	during := b.settings()
	if during == before {
		t.Error("nothing was switched on")
	}
	if err := b.giveBack(); err != nil || b.settings() != during {
		t.Errorf("the first root: %v, %s", err, b.settings())
	}
	for range 2 {
		if err := other.giveBack(); err != nil || b.settings() != before {
			t.Errorf("the last root: %v, %s", err, b.settings())
		}
	}
}
