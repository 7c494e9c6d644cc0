package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/testkit"
)

// needsTun skips a test of a machine with interfaces where the kernel makes no taps.
func needsTun(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("needs the kernel's driver tun")
	}
}

// container makes a container on the bridge of the machines.
func container(t *testing.T, name, addresses string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".yaml")
	text := "name: " + name + "\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: bridge, address: " + addresses + "}]\n"
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	t.Cleanup(func() { berth(t, "", "rm", "--force", name) })
	must(t, "apply", "-f", path)
}

// answers checks that a machine answers a container, by these addresses of the machine.
func answers(t *testing.T, machine, container string, addresses ...string) {
	t.Helper()
	must(t, "exec", machine, "--", "sh", "-c", "nc -ll -p 5000 -e echo hello from "+machine+" </dev/null >/dev/null 2>&1 &")
	for _, to := range addresses {
		testkit.Eventually(t, "the container is answered by "+to, func() bool {
			out, _ := berth(t, "", "exec", container, "--", "busybox", "nc", "-w", "10", to, "5000")
			return out == "hello from "+machine+"\n"
		})
	}
}

// TestNetwork: a machine's interfaces are those of its spec, and what holds for a container's holds for them.
func TestNetwork(t *testing.T) {
	needs(t)
	needsTun(t)
	must(t, "apply", "-f", spec(t, "m3", `network:
  - {name: eth0, mode: bridge, address: [192.0.2.10/24, "2001:db8::10/64"], mac: "02:00:5e:00:53:10", rate: {tx: 8Mbit/s, rx: 8Mbit/s}}
  - {name: eth1, mode: nat}
`))
	container(t, "c3", `[192.0.2.11/24, "2001:db8::11/64"]`)
	show := must(t, "show", "m3")
	for _, want := range []string{"net.eth0.tx", "02:00:5e:00:53:10", "192.0.2.10/24"} {
		if !strings.Contains(show, want) {
			t.Errorf("show lacks %q:\n%s", want, show)
		}
	}
	inside := must(t, "exec", "m3", "--", "sh", "-c", "cat /sys/class/net/eth0/address; ip -o addr; ip route; cat /etc/resolv.conf")
	for _, want := range []string{"02:00:5e:00:53:10\n", "192.0.2.10/24", "2001:db8::10/64", "default via "} {
		if !strings.Contains(inside, want) {
			t.Errorf("the guest lacks %q:\n%s", want, inside)
		}
	}
	for _, to := range []string{"192.0.2.11", "2001:db8::11"} {
		if out, code := berth(t, "", "exec", "m3", "--", "ping", "-c", "2", "-W", "10", to); code != 0 {
			t.Errorf("ping from the machine to %s: exit code %d: %s", to, code, out)
		}
	}
	answers(t, "m3", "c3", "192.0.2.10", "2001:db8::10")
	onlyKnownModels(t, "m3")
	must(t, "set", "m3", "net.eth0.tx=4Mbit/s")
	if show := must(t, "show", "m3"); !strings.Contains(show, "4Mbit/s  4Mbit/s") {
		t.Errorf("after set, show says:\n%s", show)
	}
	// A MAC of another's is not let out.
	become := func(mac string) {
		must(t, "exec", "m3", "--", "sh", "-ec", "ip link set eth0 down; ip link set eth0 address "+mac+"; ip link set eth0 up; grep "+mac+" /sys/class/net/eth0/address")
	}
	become("02:00:5e:00:53:99")
	if out, code := berth(t, "", "exec", "m3", "--", "ping", "-c", "1", "-W", "2", "192.0.2.11"); code == 0 {
		t.Errorf("with another MAC: %s", out)
	}
	become("02:00:5e:00:53:10")
	if out, code := berth(t, "", "exec", "m3", "--", "ping", "-c", "2", "-W", "10", "192.0.2.11"); code != 0 {
		t.Errorf("with its own MAC again: exit code %d: %s", code, out)
	}
}
