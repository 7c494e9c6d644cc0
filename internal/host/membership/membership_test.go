package membership_test

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/membership"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
)

// TestClaims: a host of a site claims the name, given MACs, and the addresses that leave the host, in its first step; a host that
// is alone claims nothing.
func TestClaims(t *testing.T) {
	n := &vnode.Node{Name: "n1", Network: []vnode.Network{
		{Name: "eth0", Mode: vnode.Bridge, Address: []string{"10.0.0.1/24"}},
		{Name: "eth1", Mode: vnode.Bridge, Parent: "br0", MAC: "02:00:00:00:00:0A", Address: []string{"192.0.2.7/24", "2001:DB8::0:7/64"}},
		{Name: "eth2", Mode: vnode.NAT, Address: []string{"10.1.0.1/24"}},
	}}
	l := layout.New(t.TempDir())
	if steps, err := membership.Claims(membership.AgentOf(l, nil), n); err != nil || len(steps) != 0 {
		t.Errorf("alone: %v, %v", steps, err)
	}
	steps, err := membership.Claims(membership.AgentOf(l, &membership.Member{Site: "s", Host: "a"}), n)
	if err != nil || len(steps) != 1 {
		t.Fatalf("%v, %v", steps, err)
	}
	want := "name n1, MAC 02:00:00:00:00:0a, address 192.0.2.7, address 2001:db8::7, for node n1 of host a"
	if diff := cmp.Diff(want, steps[0].String()); diff != "" {
		t.Error(diff)
	}
}

func TestJoinAndLeave(t *testing.T) {
	l := layout.New(t.TempDir())
	if err := os.MkdirAll(l.Lib, 0o755); err != nil {
		t.Fatal(err)
	}
	want := &membership.Member{Site: "s", Host: "a"}
	for _, member := range []*membership.Member{nil, want, nil} { // alone, joined, left
		got, err := membership.Read(l)
		if diff := cmp.Diff(member, got); err != nil || diff != "" {
			t.Error(err, diff)
		}
		if member == nil && got == nil {
			err = membership.Join(l, *want)
		} else {
			err = membership.Leave(l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
