package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/testkit"
)

// TestNetwork: a machine's interfaces are those of its spec, and what holds for a container's holds for them.
func TestNetwork(t *testing.T) {
	needs(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("needs the kernel's driver tun")
	}
	must(t, "apply", "-f", spec(t, "m3", `network:
  - {name: eth0, mode: bridge, address: [192.0.2.10/24, "2001:db8::10/64"], mac: "02:00:5e:00:53:10", rate: {tx: 8Mbit/s, rx: 8Mbit/s}}
  - {name: eth1, mode: nat}
`))
	path := filepath.Join(t.TempDir(), "c3.yaml")
	text := "name: c3\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: bridge, address: [192.0.2.11/24, \"2001:db8::11/64\"]}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { berth(t, "", "rm", "--force", "c3") })
	must(t, "apply", "-f", path)
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
	must(t, "exec", "m3", "--", "sh", "-c", "nc -ll -p 5000 -e echo hello </dev/null >/dev/null 2>&1 &")
	for _, to := range []string{"192.0.2.10", "2001:db8::10"} {
		testkit.Eventually(t, "the container is answered by "+to, func() bool {
			out, _ := berth(t, "", "exec", "c3", "--", "busybox", "nc", "-w", "10", to, "5000")
			return out == "hello\n"
		})
	}
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
