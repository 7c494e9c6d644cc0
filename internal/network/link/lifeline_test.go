package link

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/sriov"
	"berth/internal/sys/mac"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// TestLifeline builds a bridge on an adapter and checks what Lifeline reports for the adapter.
func TestLifeline(t *testing.T) {
	b := newLab(t)
	b.adapter("eth0")
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, mac.Address{})})
	testkit.Must(b.t, b.h.LinkSetMaster(b.get("eth0"), b.get("br9")))
	testkit.Must(b.t, b.h.LinkSetUp(b.get("br9")))
	addr, err := netlink.ParseAddr("203.0.113.5/24")
	testkit.Must(b.t, err)
	testkit.Must(b.t, b.h.AddrAdd(b.get("br9"), addr))
	ask := func(login, want string) {
		t.Helper()
		a, _ := netip.ParseAddr(login) // no login: the zero address
		// The last adapter has a virtual function that carries the connection.
		for _, pf := range []sriov.PF{{Name: "eth0"}, {Name: "br9"}, {Name: "wire", VFs: []sriov.VF{{}, {Link: "eth0"}}}} {
			if got, err := netif.Lifeline(pf.Links(), a); err != nil || got != want {
				t.Errorf("%+v, login by %q: %q, %v", pf, login, got, err)
			}
		}
		if got, err := netif.Lifeline((&sriov.PF{Name: "wire", VFs: []sriov.VF{{}}}).Links(), a); err != nil || got != "" {
			t.Errorf("the other end of the cable: %q, %v", got, err)
		}
	}
	ask("", "")
	ask("203.0.113.6", "")
	ask("203.0.113.5", "the SSH session that asks")
	ask("::ffff:203.0.113.5", "the SSH session that asks")
	testkit.Must(b.t, b.h.RouteAdd(&netlink.Route{LinkIndex: b.get("br9").Attrs().Index, Gw: addr.IP.Mask(addr.Mask).To4()}))
	ask("", "the host's default route")
}

// TestUndoLeavesOthersAlone undoes the steps of a node whose virtual function belongs to another node now.
func TestUndoLeavesOthersAlone(t *testing.T) {
	leases := sriov.Leases(t.TempDir())
	m := &sriov.Move{Claimed: sriov.Claimed{Leases: leases, Lease: sriov.Lease{PCI: "0000:01:10.0", Token: "old"}}}
	b, err := step.BootID()
	if err != nil {
		t.Skipf("needs /proc: %v", err)
	}
	if err := leases.Take(sriov.Lease{PCI: "0000:01:10.0", Token: "new", Boot: b, Owner: sriov.Owner{Node: "b", If: "eth0", Run: t.TempDir()}}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []step.Step{m, &sriov.Configure{Claimed: m.Claimed, Original: netif.Original{Name: "x"}}, &sriov.Claim{Leases: leases, Lock: t.TempDir() + "/lock", Token: "old"}} {
		if err := s.Undo(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, ok := leases.Read("0000:01:10.0"); !ok {
		t.Error("the other's lease is gone")
	}
}
