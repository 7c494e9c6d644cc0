package link

import (
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/sriov"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestVFUser uses a link of the lab as a virtual function's and gives it users of all kinds.
func TestVFUser(t *testing.T) {
	on := func(link netlink.Link) func(b *lab) {
		return func(b *lab) {
			link.Attrs().Name, link.Attrs().ParentIndex = "upper0", b.get("vf0").Attrs().Index
			b.need(link)
		}
	}
	for _, tt := range []struct {
		name, want string
		use        func(b *lab)
	}{
		{"nobody", "", func(*lab) {}},
		{"an address", "the host, as vf0", func(b *lab) {
			addr, err := netlink.ParseAddr("192.0.2.5/24")
			testkit.Must(b.t, err)
			testkit.Must(b.t, b.h.AddrAdd(b.get("vf0"), addr))
		}},
		{"a bridge", "the host, as vf0", func(b *lab) {
			b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, mac.Address{})})
			testkit.Must(b.t, b.h.LinkSetMaster(b.get("vf0"), b.get("br9")))
		}},
		{"a VLAN", "the host, as vf0 under upper0", on(&netlink.Vlan{LinkAttrs: netif.Attrs("", 0, mac.Address{}), VlanId: 7})},
		{"a macvlan", "the host, as vf0 under upper0", on(&netlink.Macvlan{LinkAttrs: netif.Attrs("", 0, mac.Address{}), Mode: netlink.MACVLAN_MODE_BRIDGE})},
		{"an ipvlan", "the host, as vf0 under upper0", on(&netlink.IPVlan{LinkAttrs: netif.Attrs("", 0, mac.Address{})})},
		{"a tunnel", "the host, as vf0 under upper0", func(b *lab) {
			b.need(&netlink.Vxlan{LinkAttrs: netif.Attrs("upper0", 0, mac.Address{}), VxlanId: 7, VtepDevIndex: b.get("vf0").Attrs().Index, Port: 4789})
		}},
		{"a macvlan elsewhere", "a link on vf0 in another network namespace, with MAC 02:00:5e:10:00:66", func(b *lab) {
			a := b.node("a")
			a.do(a.steps(vnode.Network{Mode: vnode.Macvlan, Parent: "vf0", MAC: "02:00:5e:10:00:66"}))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newLab(t)
			b.need(&netlink.Veth{LinkAttrs: netif.Attrs("vf0", 0, mac.Address{}), PeerName: "wire", PeerTxQLen: -1})
			testkit.Must(b.t, b.h.LinkSetUp(b.get("vf0")))
			tt.use(b)
			got, err := sriov.UserOf(sriov.Leases(t.TempDir()), sriov.VF{PCI: "0000:01:10.0", Driver: "igbvf", Link: "vf0"})
			if err != nil || got != tt.want {
				t.Errorf("got  %q, %v\nwant %q", got, err, tt.want)
			}
		})
	}
}

// TestMoveIsVerified looks at a link in a node, which is on no PCI device, as at a virtual function that was moved there.
func TestMoveIsVerified(t *testing.T) {
	b := newLab(t)
	n := b.node("a")
	b.need(&netlink.Veth{LinkAttrs: netif.Attrs("vf0", 0, mac.Must("02:00:5e:10:00:66")), PeerName: "wire", PeerTxQLen: -1})
	testkit.Must(b.t, b.h.LinkSetNsPid(b.get("vf0"), n.cmd.Process.Pid))
	for _, tt := range []struct {
		pci, mac string
		ok       bool
	}{
		{"", "02:00:5e:10:00:66", true},
		{"", "02:00:5e:10:00:67", false},
		{"0000:01:10.0", "02:00:5e:10:00:66", false},
		{"0000:01:10.0", "02:00:5e:10:00:67", false},
	} {
		m := sriov.Move{Inside: netif.Inside{NS: n.ns, If: "vf0"}, Claimed: sriov.Claimed{Lease: sriov.Lease{PCI: tt.pci}}, MAC: mac.Must(tt.mac)}
		if err := m.Verify(t.Context()); (err == nil) != tt.ok {
			t.Errorf("%q with %s: %v", tt.pci, tt.mac, err)
		}
	}
}

// TestLendWhatNodesShare lends a link with a node's macvlan on it, which the host's list of links does not show.
func TestLendWhatNodesShare(t *testing.T) {
	b := newLab(t)
	b.adapter("eth0")
	a, c := b.node("a"), b.node("c")
	shared := a.steps(vnode.Network{Mode: vnode.Macvlan, Parent: "eth0", MAC: "02:00:5e:10:00:66"})
	a.do(shared)
	if _, err := c.plan(lend()); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "02:00:5e:10:00:66") {
		t.Errorf("lent from under a node: %v", err)
	}
	a.undo(shared)
	testkit.Must(b.t, os.RemoveAll(b.dir+"/macs"))
	if _, err := c.plan(lend()); err != nil {
		t.Errorf("nobody has it: %v", err)
	}
}
