package security

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"berth/test/env"
)

// TestOwnIdentity checks that a node, also in exec, cannot change its addresses, MAC, MTU, routes, filters or queues. It uses the
// host's ip and tc, so a refusal comes from the kernel.
func TestOwnIdentity(t *testing.T) {
	for _, program := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s on this host", program)
		}
	}
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "network: [{name: eth0, mode: bridge, address: [192.0.2.77/24]}]")
		before := w.OK(t, "exec", name, "--", "/bin/sh", "-c", "ip link show eth0; ip -4 addr show eth0; ip -4 route")
		if !strings.Contains(before, "192.0.2.77/24") {
			t.Fatalf("no address: %s", before)
		}
		for _, try := range []string{
			"ip addr add 192.0.2.78/24 dev eth0", "ip addr del 192.0.2.77/24 dev eth0", "ip addr add 127.0.0.2/8 dev lo",
			"ip link set eth0 address 02:00:00:00:00:01", "ip link set eth0 mtu 1400", "ip link set eth0 down", "ip link set eth0 name eth1",
			"ip link set eth0 promisc on", "ip link set eth0 netns 1", "ip link add dummy0 type dummy", "ip link add m0 link eth0 type macvlan",
			"ip link del eth0", "ip route add default via 192.0.2.1", "ip rule add from all lookup 100", "ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:02 dev eth0",
			"tc qdisc add dev eth0 root tbf rate 1mbit burst 10k latency 50ms", "tc qdisc replace dev eth0 root pfifo", "tc qdisc add dev eth0 ingress",
			"ip netns add x",
		} {
			out, stderr, code := w.Try("exec", name, "--", "/bin/sh", "-c", try)
			if code == 0 {
				t.Errorf("%s: done: %s%s", try, out, stderr)
			}
		}
		if after := w.OK(t, "exec", name, "--", "/bin/sh", "-c", "ip link show eth0; ip -4 addr show eth0; ip -4 route"); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// TestAbstractSockets checks that a node cannot reach the host's abstract sockets, which only the network namespace protects.
func TestAbstractSockets(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		socket := "@berth-" + unique(t)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		got := map[string]string{}
		if stdout, _, _ := env.Try(exec.Command(build.probe, "socket", socket)); !strings.Contains(stdout, "ok") {
			t.Fatalf("the host itself does not reach it: %s", stdout)
		}
		for _, flags := range [][]string{nil, {"--network", "none"}, {"--network", "bridge"}} {
			decode(t, w.host(t, flags, "/probe/probe", "socket", socket), &got)
			if got[socket] != "ECONNREFUSED" {
				t.Errorf("%v: %s", flags, got[socket])
			}
		}
	})
}
