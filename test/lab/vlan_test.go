package lab_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/built"
	"berth/test/lab"
	"berth/test/sample"
)

// TestVLAN gives nodes of one machine VLANs on its adapter, by macvlan and by a bridge that filters. The machine at the other
// end of the cable has one address in each VLAN: it answers only what arrives with the right tag (arp_ignore: not for
// an address on another link).
func TestVLAN(t *testing.T) {
	t.Parallel()
	a, b, adapter := joined(t)
	b.OK(t, `sysctl -qw net.ipv4.conf.all.arp_ignore=1; n=$(basename $(ls -d /sys/class/net/e*)); for id in 7 8; do ip link add link $n name v$id type vlan id $id
		ip link set v$id up; ip addr add 198.51.100.10$id/24 dev v$id; ip route add 198.51.100.$id dev v$id; done`)
	defer b.OK(t, "ip link del v7; ip link del v8")
	spec := func(name, network string, ip int) string {
		file := "/root/" + name + ".yaml"
		a.Write(t, file, fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{%s, address: [198.51.100.%d/24]}]\n", name, network, ip))
		return file
	}
	before := a.OK(t, leftovers)
	same := func(what string) {
		t.Helper()
		if now := a.OK(t, leftovers); now != before {
			t.Fatalf("%s: it was\n%s\nand is\n%s", what, before, now)
		}
	}
	ping := func(from, to string, want bool) {
		t.Helper()
		tries := map[bool]int{true: 60, false: 3}[want]
		r := a.Run(t, "bash", "-c", fmt.Sprintf("for i in $(seq %d); do nsenter -t %d -n busybox ping -c1 -W1 %s && exit; done; exit 1", tries, show(t, a, from).PID, to))
		if (r.Code == 0) != want {
			t.Errorf("%s reaches %s: %t, want %t", from, to, !want, want)
		}
	}
	apart := func(t *testing.T, kind string) {
		for _, n := range []struct {
			name    string
			vlan, i int
		}{{"n7", 7, 7}, {"m7", 7, 17}, {"n8", 8, 8}} {
			a.OK(t, "berth apply -f "+spec(n.name, fmt.Sprintf("%s, vlan: %d", kind, n.vlan), n.i))
		}
		ping("n7", "198.51.100.107", true)
		ping("n7", "198.51.100.17", true)
		ping("n7", "198.51.100.108", false)
		ping("n7", "198.51.100.8", false)
		ping("n8", "198.51.100.108", true)
	}
	t.Run("macvlan", func(t *testing.T) {
		apart(t, "mode: macvlan, parent: "+adapter)
		a.OK(t, "berth rm --force n7; ip link show "+adapter+".7 up | grep berth") // the other node uses it
		a.OK(t, "berth rm --force m7 n8")
		same("the last user is gone")
		// Somebody else's device, under a name of its own, is used and stays.
		a.OK(t, "ip link add link "+adapter+" name other7 type vlan id 7; ip link set other7 up; berth apply -f /root/n7.yaml")
		ping("n7", "198.51.100.107", true)
		a.OK(t, "berth rm --force n7; ip link del other7")
		same("the other's device is gone")
	})
	t.Run("bridge", func(t *testing.T) {
		a.OK(t, "ip link add br7 type bridge; ip link set br7 up; ip link set "+adapter+" master br7")
		defer a.OK(t, "ip link del br7")
		file := spec("n7", "mode: bridge, parent: br7, vlan: 7", 7)
		if r := a.Run(t, "berth", "apply", "-f", file); r.Code != 3 || !strings.Contains(r.Err, "does not filter VLANs") {
			t.Errorf("a bridge that does not filter: exit code %d\n%s", r.Code, r.Err)
		}
		a.OK(t, "ip link set br7 type bridge vlan_filtering 1; bridge vlan add dev "+adapter+" vid 7; bridge vlan add dev "+adapter+" vid 8")
		apart(t, "mode: bridge, parent: br7")
		a.OK(t, "berth rm --force n7 m7 n8")
	})
	same("the bridge is gone")
	t.Run("killed", func(t *testing.T) { killVLAN(t, a, spec("n7", "mode: macvlan, parent: "+adapter+", vlan: 7", 7), same) })
}

// leftovers prints what a node's VLAN could leave on a host.
const leftovers = "ip -o link | cut -d: -f2 | sort; ls /run/berth.vlans 2>/dev/null || true"

// killVLAN kills berth at the points that concern the VLAN device.
func killVLAN(t *testing.T, a *lab.VM, file string, same func(string)) {
	berth := filepath.Join(t.TempDir(), "berth")
	if err := built.Berth(context.Background(), berth, "berthfault"); err != nil {
		t.Fatal(err)
	}
	a.Copy(t, berth, "/usr/local/bin/berth-fault")
	for _, c := range []struct{ before, command string }{
		{"", "berth-fault apply -f " + file},
		{"berth apply -f " + file, "berth-fault rm --force n7"},
	} {
		a.OK(t, c.before)
		log := a.OK(t, "rm -f /root/points; BERTH_FAULT_LOG=/root/points "+c.command+" >/dev/null; cat /root/points; berth rm --force n7 2>/dev/null || true")
		var points []string
		for line := range strings.Lines(log) {
			if number, what, _ := strings.Cut(strings.TrimSpace(line), " "); strings.Contains(strings.ToLower(what), "vlan") {
				points = append(points, number)
			}
		}
		if len(points) < 2 {
			t.Fatalf("%s passes\n%s", c.command, log)
		}
		for i, stride := sample.Of(t).Points(0); i < len(points); i += stride {
			a.OK(t, c.before)
			if r := a.Run(t, "bash", "-c", "BERTH_FAULT="+points[i]+" "+c.command); r.Code != 137 {
				t.Errorf("killed at %s of %s: exit code %d\n%s%s", points[i], c.command, r.Code, r.Out, r.Err)
			}
			a.OK(t, "berth repair; berth rm --force n7 2>/dev/null || true")
			same("killed at " + points[i] + " of " + c.command)
		}
	}
}
