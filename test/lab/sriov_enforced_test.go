package lab_test

import (
	"strings"
	"testing"

	"berth/test/testkit"
)

// testEnforced checks which frames Berth's spoof check drops, and then which ones the adapter drops for a node with spoof: true.
// Nodes lack NET_RAW and NET_ADMIN, so the host's root sends the frames from the node's namespace. In each case the counter of
// the sending link proves that they were sent. Their arrival is asserted for the VLAN of a function, and only logged where
// this emulated adapter is known to pass frames that others drop; docs/sriov.md has the results.
func testEnforced(t *testing.T, a, b *host) {
	a.OK(t, "berth apply -f "+a.vfNode(t, "a", "192.0.2.1", ", spoof: true"))
	defer a.OK(t, "berth rm --force a")
	known := func(mac string) bool { // known reports whether the peer has seen a request from this MAC
		return strings.Contains(b.inside(t, "peer", "ip neigh").Out, mac)
	}
	packets := func(h *host, node, link, way string) int { // way: RX or TX
		return number(t, strings.TrimSpace(h.inside(t, node, "ip -s link show "+link+" | busybox awk '/"+way+":/ {getline; print $2}'").Out))
	}
	t.Run("held back by Berth", func(t *testing.T) {
		a.OK(t, "berth apply -f "+a.vfNode(t, "held", "192.0.2.5", ""))
		defer a.OK(t, "berth rm --force held")
		if !a.reaches(t, "held", "192.0.2.2") {
			t.Error("a node does not reach its peer under its own address")
		}
		const foreign = "02:00:00:00:00:08"
		a.inside(t, "held", "ip link add link eth0 name m8 address "+foreign+" type macvlan mode bridge; ip addr add 192.0.2.78/24 dev m8; ip link set m8 up; busybox ping -I m8 -c 3 -W 1 192.0.2.2 || true; ip link del m8")
		a.inside(t, "held", "ip addr add 192.0.2.79/24 dev eth0; busybox ping -I 192.0.2.79 -c 3 -W 1 192.0.2.2 || true; ip addr del 192.0.2.79/24 dev eth0")
		if neighbours := b.inside(t, "peer", "ip neigh").Out; known(foreign) || strings.Contains(neighbours, "192.0.2.78") || strings.Contains(neighbours, "192.0.2.79") {
			t.Errorf("the peer has heard from others' addresses:\n%s", neighbours)
		}
	})
	t.Run("foreign source MAC", func(t *testing.T) {
		const foreign = "02:00:00:00:00:07"
		r := a.inside(t, "a", "ip link add link eth0 name m7 address "+foreign+" type macvlan mode bridge; ip addr add 192.0.2.77/24 dev m7; ip link set m7 up; busybox ping -I m7 -c 3 -W 1 192.0.2.2 || true")
		if n := packets(a, "a", "m7", "TX"); n < 3 {
			t.Errorf("%d packets were sent\n%s%s", n, r.Out, r.Err)
		}
		t.Logf("seen by the peer: %t", known(foreign))
		a.inside(t, "a", "ip link del m7")
	})
	t.Run("foreign tag", func(t *testing.T) {
		b.inside(t, "peer", "ip link add link eth0 name v7 type vlan id 7; ip addr add 198.51.100.2/24 dev v7; ip link set v7 up")
		before := packets(b, "peer", "v7", "RX")
		r := a.inside(t, "a", "ip link add link eth0 name v7 type vlan id 7; ip addr add 198.51.100.1/24 dev v7; ip link set v7 up; busybox ping -c 3 -W 1 198.51.100.2 || true")
		if n := packets(a, "a", "v7", "TX"); n < 3 {
			t.Errorf("%d packets were sent\n%s%s", n, r.Out, r.Err)
		}
		t.Logf("received by the peer: %d packets", packets(b, "peer", "v7", "RX")-before)
		a.inside(t, "a", "ip link del v7")
		b.inside(t, "peer", "ip link del v7")
	})
	t.Run("vlan", func(t *testing.T) {
		a.OK(t, "berth apply -f "+a.vfNode(t, "in120", "192.0.2.3", ", vlan: 120"))
		defer a.OK(t, "berth rm --force in120")
		b.OK(t, "berth apply -f "+b.vfNode(t, "in120", "192.0.2.4", ", vlan: 120"))
		defer b.OK(t, "berth rm --force in120")
		if !a.reaches(t, "in120", "192.0.2.4") {
			t.Error("two nodes of one VLAN do not reach each other")
		}
		for _, tt := range []struct{ node, to string }{{"in120", "192.0.2.2"}, {"a", "192.0.2.4"}} {
			a.OK(t, "sleep 4") // igbvf reads its counters every two seconds
			before := packets(a, tt.node, "eth0", "TX")
			if a.inside(t, tt.node, "ip neigh flush dev eth0; busybox ping -c 3 -W 1 "+tt.to).Code == 0 {
				t.Errorf("%s reaches %s, which is not in its VLAN", tt.node, tt.to)
			}
			testkit.Eventually(t, tt.node+" sends packets to "+tt.to, func() bool { return packets(a, tt.node, "eth0", "TX")-before >= 3 })
		}
		if mac := a.mac(t, "in120"); known(mac) {
			t.Errorf("a frame of VLAN 120, from %s, arrived at the peer, which is not in it", mac)
		}
		if mac := a.mac(t, "a"); strings.Contains(b.inside(t, "in120", "ip neigh").Out, mac) {
			t.Errorf("a frame without VLAN, from %s, arrived in VLAN 120", mac)
		}
	})
	t.Run("max_tx_rate", func(t *testing.T) {
		if out := a.OK(t, "ip link set "+a.pf+" vf 0 max_tx_rate 20; ip link show "+a.pf); !strings.Contains(out, "max_tx_rate 20Mbps") {
			t.Errorf("max_tx_rate is not read back:\n%s", out)
		}
		b.OK(t, "berth exec peer -- sh -c 'iperf3 -s -1 -D >/dev/null 2>&1'")
		t.Log(a.OK(t, "while awaiting; do berth exec a -- iperf3 -f m -t 3 -c 192.0.2.2 >/root/iperf && break; done; grep sender /root/iperf; ip link set "+a.pf+" vf 0 max_tx_rate 0"))
	})
}
