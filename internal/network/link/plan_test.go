package link

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func input(nets ...vnode.Network) Input {
	n := vnode.Node{Network: nets}
	vnode.Defaults(&n)
	return Input{
		Node: "wn-001", Hostname: "wn-001.example.org", Networks: n.Network, SiteID: "3f1c", Bridge: "berth0", NS: netif.NS{Pin: "/run/berth/nodes/wn-001/netns"},
		Facts: Facts{Links: map[string]HostLink{
			"lo":        {Type: "device", MTU: 65536, Up: true, Loopback: true},
			"br0":       {Type: "bridge", MTU: 1500, Up: true},
			"enp1":      {Type: "device", MTU: 1500, Up: true, DefaultRoute: true},
			"enp2":      {Type: "device", MTU: 9000, Up: true},
			"enp3":      {Type: "device", MTU: 1500},
			"enp4":      {Type: "device", MTU: 1500, Up: true, Master: "br0"},
			"enp5":      {Type: "device", MTU: 1500, Up: true, Uppers: []string{"enp5.7"}},
			"enp6":      {Type: "device", MTU: 1500, Up: true, VFs: &HostVFs{Total: 7, Uses: []VFUse{{User: "node a/eth0", Run: "/run/a"}, {User: "another network namespace"}}}},
			"enp8":      {Type: "device", MTU: 1500, Up: true, VFs: &HostVFs{Total: 7}},
			"enp9":      {Type: "device", MTU: 1500, VFs: &HostVFs{Total: 7, Uses: []VFUse{{}}}},
			"enp10":     {Type: "device", MTU: 1500, Up: true, Speed: 1e9, VFs: &HostVFs{Total: 7, Uses: []VFUse{{}, {}}}},
			"enp10v0":   {Type: "device", MTU: 1500, Up: true, Adapter: "enp10"},
			"enp11":     {Type: "device", MTU: 1500, Up: true, Macvlans: []mac.Address{mac.Must("02:00:5e:10:00:01"), mac.Must("02:00:5e:10:00:02")}},
			"br1":       {Type: "bridge", MTU: 1500, Up: true, Filters: true},
			"enp2.8":    {Type: "vlan", MTU: 1400, Up: true, VLAN: 8, Lower: "enp2"},
			"uplink9":   {Type: "vlan", MTU: 1500, VLAN: 9, Lower: "enp2"},
			"berth-xyz": {Type: "veth", MTU: 1500, Up: true},
		}},
	}
}

func text(t *testing.T, in Input) string {
	t.Helper()
	claims, err := Claims(in)
	if err != nil {
		t.Fatal(err)
	}
	in.MACs = MACs(claims)
	live, err := Live(in)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range append(claims, live...) {
		b.WriteString(s.Kind() + " " + s.String() + "\n")
	}
	return b.String()
}

func TestPlan(t *testing.T) {
	got := text(t, input(
		vnode.Network{Mode: vnode.Bridge, Address: []string{"192.0.2.10/24", "2001:db8::10/64"}, Gateway: "192.0.2.1"},
		vnode.Network{Mode: vnode.Bridge, Parent: "br0", MTU: 1400, MAC: "02:00:5E:10:00:01"},
		vnode.Network{Mode: vnode.Macvlan, Parent: "enp2", Name: "data0", Rate: vnode.NetRate{TX: 1e9, RX: 1e8}, Address: []string{"203.0.113.9/24"}, Routes: []vnode.Route{{To: "198.51.100.0/24", Via: "203.0.113.1"}}},
		vnode.Network{Mode: vnode.Phys, Parent: "enp3"},
		vnode.Network{Mode: vnode.SRIOV, Parent: "enp10", MAC: "02:00:5e:10:00:02", VLAN: 120, Address: []string{"192.0.2.30/24"}},
	))
	want := `link.claim-address eth0 192.0.2.10, on the host-only bridge
link.claim-address eth0 2001:db8::10, on the host-only bridge
link.claim-mac eth0 ee:02:08:45:2b:35, derived from site id and name
link.claim-mac eth1 02:00:5e:10:00:01, as given
link.claim-mac data0 ` + address.DeriveMAC("3f1c", "wn-001", "data0", 0).String() + `, derived from site id and name
link.claim-mac eth4 02:00:5e:10:00:02, as given
link.bridge berth0, host-only, made with the first node and gone with the last
link.pin the network namespace at /run/berth/nodes/wn-001/netns, so that it outlives the node's init
link.veth eth0 ee:02:08:45:2b:35, mtu 1500, to bridge berth0
link.antispoof eth0 sends from its MAC, 192.0.2.10/24, 2001:db8::10/64 only, by cls_bpf on the host's end
link.configure eth0 up, 192.0.2.10/24, 2001:db8::10/64, gateway 192.0.2.1
link.veth eth1 02:00:5e:10:00:01, mtu 1400, to bridge br0
link.antispoof eth1 sends from its MAC only, by cls_bpf on the host's end
link.configure eth1 up
link.macvlan data0 ` + address.DeriveMAC("3f1c", "wn-001", "data0", 0).String() + `, mtu 9000, on enp2
link.antispoof data0 sends from its MAC, 203.0.113.9/24 only, by cls_bpf
link.rate net.data0.tx 1Gbit/s by tbf
link.rate net.data0.rx 100Mbit/s by tbf on an ifb
link.probe data0 that nobody on its network has 203.0.113.9/24
link.configure data0 up, 203.0.113.9/24, route 198.51.100.0/24 via 203.0.113.1
link.phys eth3 is enp3 of the host, lent until the node ends
link.antispoof eth3 sends from its MAC only, by cls_bpf
link.configure eth3 up
sriov.claim eth4 is a free virtual function of enp10
sriov.configure eth4 on enp10: MAC 02:00:5e:10:00:02, vlan 120, spoof check on, trust off
sriov.move eth4 into the node, mtu 1500
link.antispoof eth4 sends from its MAC, 192.0.2.30/24 only, by cls_bpf
link.probe eth4 that nobody on its network has 192.0.2.30/24
link.configure eth4 up, 192.0.2.30/24
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got = text(t, input(
		vnode.Network{Mode: vnode.Bridge, Parent: "br0", MAC: "02:00:5e:10:00:01", DHCP: true, Address: []string{"2001:db8::10/64"}, Routes: []vnode.Route{
			{To: "2001:db8:1::/48", Via: "2001:db8::2"}, {To: "198.51.100.0/24", Via: "192.0.2.2"},
		}},
		vnode.Network{Mode: vnode.Bridge, Parent: "br0", MAC: "02:00:5e:10:00:02", DHCP: true},
	))
	want = `link.claim-mac eth0 02:00:5e:10:00:01, as given
link.claim-mac eth1 02:00:5e:10:00:02, as given
link.pin the network namespace at /run/berth/nodes/wn-001/netns, so that it outlives the node's init
link.veth eth0 02:00:5e:10:00:01, mtu 1500, to bridge br0
link.antispoof eth0 sends from its MAC, 2001:db8::10/64, its leased address only, by cls_bpf on the host's end
link.probe eth0 that nobody on its network has 2001:db8::10/64
link.configure eth0 up, 2001:db8::10/64, route 2001:db8:1::/48 via 2001:db8::2
link.dhcp eth0 an address by DHCP, as wn-001.example.org, default route, route 198.51.100.0/24 via 192.0.2.2
link.veth eth1 02:00:5e:10:00:02, mtu 1500, to bridge br0
link.antispoof eth1 sends from its MAC, its leased address only, by cls_bpf on the host's end
link.configure eth1 up
link.dhcp eth1 an address by DHCP, as wn-001.example.org
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got = text(t, input(
		vnode.Network{Mode: vnode.Bridge, Parent: "br1", VLAN: 7, MAC: "02:00:5e:10:00:01", Spoof: true},
		vnode.Network{Mode: vnode.Macvlan, Parent: "enp2", VLAN: 7, MAC: "02:00:5e:10:00:02", Spoof: true},
		vnode.Network{Mode: vnode.Macvlan, Parent: "enp2", VLAN: 8, MAC: "02:00:5e:10:00:03", Spoof: true},
	))
	want = `link.claim-mac eth0 02:00:5e:10:00:01, as given
link.claim-mac eth1 02:00:5e:10:00:02, as given
link.claim-mac eth2 02:00:5e:10:00:03, as given
link.veth eth0 02:00:5e:10:00:01, mtu 1500, to bridge br1, VLAN 7
link.configure eth0 up
link.vlan enp2.7, VLAN 7 of enp2, shared; made unless it is there
link.macvlan eth1 02:00:5e:10:00:02, mtu 9000, on enp2.7
link.configure eth1 up
link.vlan enp2.8, VLAN 8 of enp2, shared; made unless it is there
link.macvlan eth2 02:00:5e:10:00:03, mtu 1400, on enp2.8
link.configure eth2 up
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got := vlanDevice("enp129s0f0np0", 4094); len(got) != 15 || got == vlanDevice("enp129s0f0np0", 4093) {
		t.Errorf("a long adapter's VLAN device is %s", got)
	}
	// A default route of the spec precedes a server's.
	steps := text(t, input(vnode.Network{DHCP: true}, vnode.Network{Address: []string{"192.0.2.10/24"}, Gateway: "192.0.2.1"}))
	if !strings.Contains(steps, "link.dhcp eth0 an address by DHCP, as wn-001.example.org\n") {
		t.Error(steps)
	}
	if got := text(t, input(vnode.Network{Spoof: true})); strings.Contains(got, "antispoof") {
		t.Errorf("spoof: true: %s", got)
	}
	if got := text(t, input(vnode.Network{Mode: vnode.None})); got != "" {
		t.Errorf("mode none: %s", got)
	}
}

func TestHostName(t *testing.T) {
	if got := hostName("berth0", strings.Repeat("n", 48), "eth0"); len(got) != 15 {
		t.Errorf("%s has %d bytes", got, len(got))
	}
	if hostName("berth0", "a", "eth0") == hostName("berthabcdef", "a", "eth0") {
		t.Error("two roots share a link's name")
	}
}

func TestPlanRefuses(t *testing.T) {
	tests := []struct {
		name string
		net  vnode.Network
		kind refuse.Kind
		want string
	}{
		{"no such parent", vnode.Network{Mode: vnode.Bridge, Parent: "br7"}, refuse.NotFound, "network eth0: no link br7 on this host; there are br0, br1"},
		{"no such adapter", vnode.Network{Mode: vnode.Macvlan, Parent: "enp7"}, refuse.NotFound, "network eth0: no link enp7 on this host; there are enp1, enp10, enp10v0, enp11, enp2, enp2.8, enp3, enp4, enp5, enp6, enp8, enp9, uplink9"},
		{"not a bridge", vnode.Network{Mode: vnode.Bridge, Parent: "enp2"}, refuse.Cannot, "network eth0: parent enp2 is not a bridge (device); use mode macvlan on it, or leave parent out for a host-only bridge; bridges of this host: br0, br1"},
		{"too large", vnode.Network{Mode: vnode.Bridge, Parent: "br0", MTU: 9000}, refuse.Cannot, "network eth0: mtu 9000 is more than the 1500 of its parent br0; ask for less, or raise the parent's"},
		{"too small for IPv6", vnode.Network{Mode: vnode.Bridge, Parent: "br0", MTU: 1000, Address: []string{"192.0.2.2/24", "2001:db8::2/64"}}, refuse.Cannot, "network eth0: mtu 1000 is too small for the IPv6 address 2001:db8::2/64: at least 1280; ask for an mtu of 1280 or more, or for IPv4 addresses alone (mode bridge or macvlan), or raise the parent's"},
		{"macvlan on a port", vnode.Network{Mode: vnode.Macvlan, Parent: "enp4"}, refuse.Cannot, "network eth0: enp4 is a port of br0; use mode bridge with parent br0"},
		{"macvlan on a link that is down", vnode.Network{Mode: vnode.Macvlan, Parent: "enp3"}, refuse.Cannot, "network eth0: parent enp3 is down; ip link set enp3 up"},
		{"macvlan on lo", vnode.Network{Mode: vnode.Macvlan, Parent: "lo"}, refuse.Cannot, "network eth0: macvlan on the loopback interface; name one of enp1, enp10, enp10v0, enp11, enp2, enp2.8, enp3, enp4, enp5, enp6, enp8, enp9, uplink9"},
		{"macvlan on a virtual function", vnode.Network{Mode: vnode.Macvlan, Parent: "enp10v0"}, refuse.Cannot, "network eth0: enp10v0 is a virtual function of enp10: its spoof check drops what has another MAC than its own, as all of a macvlan has; use mode sriov with parent enp10"},
		{"lend what nodes share", vnode.Network{Mode: vnode.Phys, Parent: "enp11"}, refuse.Cannot, "network eth0: nodes or containers have macvlans on enp11: 02:00:5e:10:00:02; stop those first (berth net export tells the nodes' MACs), or use mode macvlan"},
		{"the host's way out", vnode.Network{Mode: vnode.Phys, Parent: "enp1"}, refuse.Cannot, "network eth0: enp1 carries the host's default route; use mode macvlan on it, or lend another link"},
		{"lend a port", vnode.Network{Mode: vnode.Phys, Parent: "enp4"}, refuse.Cannot, "network eth0: enp4 is a port of br0; take it out of there first, or use mode bridge"},
		{"lend what carries others", vnode.Network{Mode: vnode.Phys, Parent: "enp5"}, refuse.Cannot, "network eth0: enp5 has links on top of it: enp5.7; remove them first, or use mode macvlan"},
		{"lend a bridge", vnode.Network{Mode: vnode.Phys, Parent: "br0"}, refuse.Cannot, "network eth0: br0 cannot leave the host; name one of enp1, enp10, enp10v0, enp11, enp2, enp2.8, enp3, enp4, enp5, enp6, enp8, enp9, uplink9"},
		{"sriov on none", vnode.Network{Mode: vnode.SRIOV, Parent: "enp7"}, refuse.NotFound, "network eth0: no link enp7 on this host; there are enp10, enp6, enp8, enp9"},
		{"sriov without SR-IOV", vnode.Network{Mode: vnode.SRIOV, Parent: "enp2"}, refuse.Cannot, "network eth0: adapter enp2 has no SR-IOV; name one that has it (enp10, enp6, enp8, enp9), or use mode macvlan"},
		{"sriov not enabled", vnode.Network{Mode: vnode.SRIOV, Parent: "enp8"}, refuse.Cannot, "network eth0: adapter enp8 has no virtual functions now; berth vf enable enp8 N (it can have 7)"},
		{"sriov down", vnode.Network{Mode: vnode.SRIOV, Parent: "enp9"}, refuse.Cannot, "network eth0: adapter enp9 is down, and its virtual functions with it; ip link set enp9 up"},
		{"sriov, all in use", vnode.Network{Mode: vnode.SRIOV, Parent: "enp6"}, refuse.Busy, "network eth0: no free virtual function on enp6: 1 wanted, 0 free of 2; in use by node a/eth0, another network namespace"},
		{"sriov, too fast", vnode.Network{Mode: vnode.SRIOV, Parent: "enp10", Rate: vnode.NetRate{TX: 2e9}}, refuse.Cannot, "net.eth0.tx 2Gbit/s is more than the 1Gbit/s of enp10; ask for less, or for max"},
		{"vlan on a bridge that does not filter", vnode.Network{Mode: vnode.Bridge, Parent: "br0", VLAN: 7}, refuse.Cannot, "network eth0: vlan 7: bridge br0 does not filter VLANs; use mode macvlan on it; or ip link set br0 type bridge vlan_filtering 1, where the host's administrator wants that (CONFIG_BRIDGE_VLAN_FILTERING)"},
		{"vlan, kernel without", vnode.Network{Mode: vnode.Macvlan, Parent: "enp2", VLAN: 7}, refuse.Cannot, "network eth0: vlan 7: this kernel cannot: no VLANs; use a kernel with the module 8021q (Debian, Ubuntu: package linux-modules-extra or linux-image), or leave vlan out"},
		{"vlan, another's device is down", vnode.Network{Mode: vnode.Macvlan, Parent: "enp2", VLAN: 9}, refuse.Cannot, "network eth0: uplink9, VLAN 9 of enp2, is down; ip link set uplink9 up"},
		{"vlan, too large", vnode.Network{Mode: vnode.Macvlan, Parent: "enp2", VLAN: 8, MTU: 9000}, refuse.Cannot, "network eth0: mtu 9000 is more than the 1400 of its parent enp2.8; ask for less, or raise the parent's"},
		{"too slow a rate", vnode.Network{Mode: vnode.Bridge, Rate: vnode.NetRate{TX: 1}}, refuse.Cannot, "net.eth0.tx 1bit/s: the kernel's token bucket holds 10kbit/s to 200Gbit/s; ask for a rate in between, or max"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := input(tt.net)
			in.Facts.LacksVLAN = "no VLANs"
			in.MACs = map[string]mac.Address{"eth0": mac.Must("02:00:5e:10:00:01")}
			_, err := Live(in)
			if err == nil || err.Error() != tt.want || refuse.KindOf(err) != tt.kind {
				t.Errorf("got  %v (%d)\nwant %s (%d)", err, refuse.KindOf(err), tt.want, tt.kind)
			}
		})
	}
	in := input(vnode.Network{Mode: vnode.Phys, Parent: "enp2"}, vnode.Network{Mode: vnode.Phys, Parent: "enp2"})
	if _, err := Live(in); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("one link lent twice: %v", err)
	}
}

func TestReadFacts(t *testing.T) {
	b := newLab(t)
	b.adapter("eth0")
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, mac.Address{})})
	testkit.Must(b.t, b.h.LinkSetMaster(b.get("wire"), b.get("br9")))
	a := netif.Attrs("mv0", 0, mac.Address{})
	a.ParentIndex = b.get("eth0").Attrs().Index
	b.need(&netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE})
	dst, err := netlink.ParseIPNet("0.0.0.0/0")
	testkit.Must(b.t, err)
	testkit.Must(b.t, b.h.RouteAdd(&netlink.Route{LinkIndex: b.get("eth0").Attrs().Index, Dst: dst}))

	got, err := ReadFacts([]vnode.Network{{Mode: vnode.Phys, Parent: "eth0"}}, "", "")
	testkit.Must(b.t, err)
	delete(got.Links, "lo")
	want := map[string]HostLink{
		"eth0": {Type: "veth", MTU: 1400, Up: true, Uppers: []string{"mv0"}, DefaultRoute: true},
		"wire": {Type: "veth", MTU: 1400, Up: true, Master: "br9"},
		"br9":  {Type: "bridge", MTU: 1400},
		"mv0":  {Type: "macvlan", MTU: 1400},
	}
	if d := cmp.Diff(want, got.Links, cmpopts.EquateComparable(mac.Address{})); d != "" {
		t.Error(d)
	}
	if got, err := ReadFacts([]vnode.Network{{Mode: vnode.Bridge}}, "", ""); err != nil || got.Links != nil {
		t.Errorf("nothing was asked for: %v %v", got, err)
	}
}

// TestReserved: a start asks whether somebody has its addresses, except of those that are reserved for it.
func TestReserved(t *testing.T) {
	n := vnode.Network{Mode: vnode.Bridge, Parent: "br0", Address: []string{"192.0.2.10/24"}}
	asked := text(t, input(n))
	n.Reserved = true
	reserved := text(t, input(n))
	const probe = "link.probe eth0 that nobody on its network has 192.0.2.10/24\n"
	if diff := cmp.Diff(strings.Replace(asked, probe, "", 1), reserved); diff != "" || !strings.Contains(asked, probe) {
		t.Errorf("%s\n%s", diff, asked)
	}
}
