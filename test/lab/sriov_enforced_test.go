package lab_test

import (
	"strings"
	"testing"
)

// testEnforced looks at what the adapter does with frames that it should not pass. A node cannot send them (it has no
// NET_RAW and no NET_ADMIN): the host's root sends them from the node's namespace. What only another adapter would hold
// back is logged, not asserted; docs/sriov.md has the results.
func testEnforced(t *testing.T, a, b *host) {
	a.OK(t, "berth apply -f "+a.vfNode(t, "a", "192.0.2.1", ""))
	defer a.OK(t, "berth rm --force a")
	learn := func(mac string) bool { // whether the peer has seen a frame of this MAC
		return strings.Contains(b.inside(t, "peer", "ip neigh").Out, mac)
	}
	t.Run("foreign source MAC", func(t *testing.T) {
		const foreign = "02:00:00:00:00:07"
		r := a.inside(t, "a", "ip link add link eth0 name m7 address "+foreign+" type macvlan mode bridge; ip addr add 192.0.2.77/24 dev m7; ip link set m7 up; busybox ping -I m7 -c 3 -W 1 192.0.2.2 || true; ip -s link show m7")
		t.Logf("seen by the peer: %t\n%s%s%s", learn(foreign), r.Out, r.Err, b.inside(t, "peer", "ip neigh").Out)
		a.inside(t, "a", "ip link del m7")
	})
	t.Run("foreign tag", func(t *testing.T) {
		b.inside(t, "peer", "ip link add link eth0 name v7 type vlan id 7; ip addr add 198.51.100.2/24 dev v7; ip link set v7 up")
		r := a.inside(t, "a", "ip link add link eth0 name v7 type vlan id 7; ip addr add 198.51.100.1/24 dev v7; ip link set v7 up; busybox ping -c 3 -W 1 198.51.100.2 || true; ip -s link show v7")
		t.Logf("%s%s%s", r.Out, r.Err, b.inside(t, "peer", "ip -s link show v7; ip neigh").Out)
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
		if a.inside(t, "in120", "busybox ping -c 3 -W 1 192.0.2.2").Code == 0 {
			t.Error("a node of VLAN 120 reaches one without")
		}
		if a.inside(t, "a", "busybox ping -c 3 -W 1 192.0.2.4").Code == 0 {
			t.Error("a node without VLAN reaches one of VLAN 120")
		}
	})
	t.Run("max_tx_rate", func(t *testing.T) {
		if out := a.OK(t, "ip link set "+a.pf+" vf 0 max_tx_rate 20; ip link show "+a.pf); !strings.Contains(out, "max_tx_rate 20Mbps") {
			t.Errorf("max_tx_rate is not read back:\n%s", out)
		}
		b.OK(t, "berth exec peer -- sh -c 'iperf3 -s -1 -D >/dev/null 2>&1'")
		t.Log(a.OK(t, "sleep 1; berth exec a -- iperf3 -f m -t 3 -c 192.0.2.2 | grep sender; ip link set "+a.pf+" vf 0 max_tx_rate 0"))
	})
}
