package link

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/network/dhcp"
	"berth/internal/network/sriov"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// TestLeaseComesBack sets a lease again on a new interface, such as a virtual function whose driver was reloaded. No
// server is asked, and the address lasts for the rest of the lease.
func TestLeaseComesBack(t *testing.T) {
	b := newLab(t)
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, mac.Address{})})
	testkit.Must(b.t, b.h.LinkSetUp(b.get("br9")))
	n := b.node("a")
	steps := n.steps(vnode.Network{Mode: vnode.Bridge, Parent: "br9", DHCP: true, Routes: []vnode.Route{{To: "198.51.100.0/24", Via: "192.0.2.2"}}})
	d := steps[len(steps)-1].(*address.DHCP)
	d.File = b.dir + "/lease.eth0"
	l := dhcp.Lease{
		Address: netip.MustParsePrefix("192.0.2.10/24"), Router: netip.MustParseAddr("192.0.2.1"),
		Obtained: dhcp.Now() - 20*time.Second, Seconds: 120, T1: 60, T2: 100,
	}
	text, err := json.Marshal(l)
	testkit.Must(b.t, err)
	testkit.Must(b.t, os.WriteFile(d.File, text, 0o600))
	n.do(steps)
	h, err := netif.At(n.open())
	testkit.Must(b.t, err)
	defer h.Close()
	on, err := h.LinkByName("eth0")
	testkit.Must(b.t, err)
	for range 2 {
		testkit.Must(b.t, d.Do(context.Background()))
		testkit.Must(b.t, d.Verify(context.Background()))
		addrs, err := h.AddrList(on, netlink.FAMILY_V4)
		testkit.Must(b.t, err)
		if len(addrs) != 1 || addrs[0].IPNet.String() != "192.0.2.10/24" || addrs[0].ValidLft > 100 || addrs[0].ValidLft < 90 || addrs[0].PreferedLft != addrs[0].ValidLft {
			t.Errorf("addresses: %+v", addrs)
		}
		via := map[string]string{}
		routes, err := h.RouteList(on, netlink.FAMILY_V4)
		testkit.Must(b.t, err)
		for _, r := range routes {
			via[r.Dst.String()] = r.Gw.String()
		}
		if via["0.0.0.0/0"] != "192.0.2.1" || via["198.51.100.0/24"] != "192.0.2.2" {
			t.Errorf("routes: %v", via)
		}
		testkit.Must(b.t, h.AddrDel(on, &addrs[0])) // its routes go with it
		if d.Verify(context.Background()) == nil {
			t.Error("the address is gone, and that was not seen")
		}
	}
	n.undo(steps)
	if _, err := os.Stat(d.File); err == nil {
		t.Error("the lease is still kept")
	}
	l.Obtained -= time.Hour
	if text, err = json.Marshal(l); err != nil {
		t.Fatal(err)
	}
	testkit.Must(b.t, os.WriteFile(d.File, text, 0o600))
	testkit.Must(b.t, d.Verify(context.Background())) // it has ended; the keeper asks for another
	testkit.Must(b.t, d.Undo(context.Background()))
}

// TestReattachTakesTheLease checks which steps set a virtual function up again.
func TestReattachTakesTheLease(t *testing.T) {
	lease := sriov.Lease{PCI: "0000:01:10.0", Token: "x"}
	m := &sriov.Move{Inside: netif.Inside{If: "eth0"}, Claimed: sriov.Claimed{Lease: lease}}
	d := &address.DHCP{Inside: netif.Inside{If: "eth0"}, File: t.TempDir() + "/lease.eth0"}
	steps := []step.Step{m, &address.Configure{Inside: netif.Inside{If: "eth0"}}, d, &address.DHCP{Inside: netif.Inside{If: "eth1"}, File: d.File}}
	if _, after := around(m, "eth0", steps); len(after) != 1 {
		t.Errorf("without a lease: %v", after)
	}
	text, err := json.Marshal(dhcp.Lease{Address: netip.MustParsePrefix("192.0.2.10/24"), Obtained: dhcp.Now(), Seconds: 100, T1: 50, T2: 80})
	if err == nil {
		err = os.WriteFile(d.File, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, after := around(m, "eth0", steps); len(after) != 2 || after[1] != d {
		t.Errorf("with a lease: %v", after)
	}
}
