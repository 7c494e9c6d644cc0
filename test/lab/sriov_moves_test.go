package lab_test

import (
	"strings"
	"testing"

	"berth/test/testkit"
)

// testMoves hands an address on from a node with a virtual function to one with another. The peer on the other host, which keeps for
// an hour what it has learned and sends nothing, must hear of it.
func testMoves(t *testing.T, a, b *host) {
	keep := "cd /proc/sys/net/ipv4/neigh/eth0; for f in base_reachable_time_ms gc_stale_time delay_first_probe_time; do echo 3600000 >$f; done"
	if r := b.inside(t, "peer", keep); r.Code != 0 {
		t.Fatal(r.Err)
	}
	a.OK(t, "berth apply -f "+a.vfNode(t, "first", "192.0.2.9", ""))
	if !b.reaches(t, "peer", "192.0.2.9") {
		t.Fatal("the peer does not reach the first node")
	}
	a.OK(t, "berth apply -f "+a.vfNode(t, "second", "192.0.2.10", "")) // it takes another function
	first, second := a.mac(t, "first"), a.mac(t, "second")
	if first == second {
		t.Fatalf("both nodes have MAC %s", first)
	}
	a.OK(t, "berth rm --force first second; berth apply -f "+a.vfNode(t, "second", "192.0.2.9", ""))
	defer a.OK(t, "berth rm --force second")
	testkit.Eventually(t, "the peer knows the second node's MAC", func() bool {
		return strings.Contains(b.OK(t, "berth exec peer -- ip neigh show 192.0.2.9"), second)
	})
}
