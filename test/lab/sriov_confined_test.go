package lab_test

import (
	"regexp"
	"testing"
)

// testConfined lets a node try operations that only its host may do. Each must fail with a permission error, not because a tool
// is missing. The host's root then does the same in the node's network namespace, to show that the operation itself works.
func testConfined(t *testing.T, a *host) {
	a.OK(t, "berth apply -f "+a.vfNode(t, "a", "192.0.2.1", ", rate: {tx: 100Mbit/s}"))
	defer a.OK(t, "berth rm --force a")
	vf := a.vfs(t).VFs[0].PCI
	state := func() string {
		return a.OK(t, "ip -o link show "+a.pf+"; berth exec a -- ip -o link show eth0; berth exec a -- ip -o addr show eth0 scope global; berth exec a -- tc qdisc show dev eth0; ls -l /sys/bus/pci/devices/"+vf+"/driver")
	}
	before := state()
	tries := []struct{ try, asRoot string }{
		{"ip link set eth0 mtu 1000", "ip link set eth0 mtu 1000; ip link set eth0 mtu 1500"},
		{"ip addr add 192.0.2.77/24 dev eth0", "ip addr add 192.0.2.77/24 dev eth0; ip addr del 192.0.2.77/24 dev eth0"},
		{"ip link add link eth0 name v7 type vlan id 7", "ip link add link eth0 name v7 type vlan id 7; ip link del v7"},
		{"ip link add link eth0 name m7 type macvlan", "ip link add link eth0 name m7 type macvlan; ip link del m7"},
		{"busybox arping -I eth0 -c 1 192.0.2.2", "for i in $(seq 90); do busybox arping -I eth0 -c 1 192.0.2.2 && exit; done; exit 1"}, // a packet socket
		{"tc qdisc replace dev eth0 root pfifo", "tc qdisc replace dev eth0 root pfifo"},
		{"tc qdisc del dev eth0 root", "tc qdisc del dev eth0 root"},
		{"ip link set eth0 down", "ip link set eth0 down"},
		{"ip link set eth0 netns 1", "ip link set eth0 name host7 netns 1"}, // as root: to the host and back at the node's end
		// These the adapter, which has been told the MAC, or the node's read-only sysfs forbids to root there too, or they
		// would leave something behind: only the node tries them.
		{"sh -c 'echo 1000 >/sys/class/net/eth0/mtu'", ""},
		{"ip link set eth0 address 02:00:00:00:00:07", ""},
		{"unshare -Ur ip link set eth0 address 02:00:00:00:00:07", ""},
		{"sh -c 'echo " + vf + " >/sys/bus/pci/drivers/igbvf/unbind'", ""},
	}
	for _, tt := range tries {
		r := a.Run(t, "bash", "-c", "berth exec a -- "+tt.try)
		if said := r.Out + r.Err; r.Code == 0 || !lacksRight.MatchString(said) {
			t.Errorf("the node tried %s: exit code %d, not for lack of a right:\n%s", tt.try, r.Code, said)
		}
	}
	if after := state(); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
	for _, tt := range tries {
		if tt.asRoot == "" {
			continue
		}
		if r := a.inside(t, "a", tt.asRoot); r.Code != 0 {
			t.Errorf("root cannot do it either, so that the node's try proves nothing: %s\n%s%s", tt.asRoot, r.Out, r.Err)
		}
	}
}

// lacksRight matches the C library's texts for EPERM, EACCES and EROFS.
var lacksRight = regexp.MustCompile("Operation not permitted|Permission denied|Read-only file system")
