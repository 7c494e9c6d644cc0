package lab_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/lab"
)

// TestRates limits a node with a virtual function, whose driver's own limit this card does not enforce and which receives
// without one, and measures both directions against a machine at the other end of a cable: within 3 % at layer 2.
func TestRates(t *testing.T) {
	small := lab.Machine{CPUs: 1, Memory: 768, NICs: []lab.NIC{{Segment: "wire"}}}
	l := lab.Start(t, lab.Options{Machines: []lab.Machine{small, small}})
	a, b := l.VM(0), l.VM(1)
	bin := filepath.Join(t.TempDir(), "berth")
	if err := lab.BuildBerth(context.Background(), bin); err != nil {
		t.Fatal(err)
	}
	a.Copy(t, bin, "/usr/local/bin/berth")
	const adapter = "n=$(basename $(ls -d /sys/class/net/e*)); ip link set $n up; "
	b.OK(t, adapter+"ip addr add 192.0.2.2/24 dev $n; iperf3 -s -D >/dev/null 2>&1")
	pf := a.OK(t, adapter+"berth vf enable $n 1 >/dev/null; echo $n")
	for _, mode := range []string{"sriov", "macvlan"} {
		spec := fmt.Sprintf("name: a\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: %s, parent: %s, address: [192.0.2.1/24]}]\n", mode, pf)
		a.Write(t, "/root/a.yaml", spec)
		a.OK(t, "berth apply -f /root/a.yaml")
		for _, mbit := range []int{10, 100} {
			for _, way := range []string{"tx", "rx"} {
				a.OK(t, fmt.Sprintf("berth set a net.eth0.%s=%dMbit/s net.eth0.%s=max", way, mbit, map[string]string{"tx": "rx", "rx": "tx"}[way]))
				t.Run(fmt.Sprintf("%s %s %d", mode, way, mbit), func(t *testing.T) { measure(t, a, way, mbit) })
			}
		}
		if r := a.Run(t, "berth", "exec", "a", "--", "tc", "qdisc", "del", "dev", "eth0", "ingress"); r.Code == 0 || !strings.Contains(r.Err, "not permitted") {
			t.Errorf("%s: the node changed its own limit: %s%s", mode, r.Out, r.Err)
		}
		a.OK(t, "berth rm --force a")
	}
	if got := a.OK(t, "tc qdisc; ip -o link"); strings.Contains(got, "tbf") || strings.Contains(got, "ifb") {
		t.Errorf("left on the host:\n%s", got)
	}
}

// measure looks five times at most whether the rate is reached, because emulated machines stall. One that carries hardly
// more without a limit proves nothing.
func measure(t *testing.T, a *lab.VM, way string, mbit int) {
	t.Helper()
	for try := 1; ; try++ {
		got := layer2(t, a, way)
		off := (got/float64(mbit) - 1) * 100
		t.Logf("at layer 2 %.2f Mbit/s (%+.2f %%)", got, off)
		switch {
		case math.Abs(off) <= 3:
			return
		case off > 0:
			t.Fatalf("%s %d Mbit/s is exceeded by %.2f %%", way, mbit, off)
		case try == 5:
			a.OK(t, fmt.Sprintf("berth set a net.eth0.%s=max", way))
			if free := layer2(t, a, way); free < 1.5*float64(mbit) {
				t.Skipf("needs a machine with time to spare: without a limit it carries %.0f Mbit/s", free)
			}
			t.Fatalf("%s %d Mbit/s is missed by %.2f %%", way, mbit, off)
		}
	}
}

// layer2 is the rate in Mbit/s, frames counted, of 5 s of TCP, after 2 in which it finds its speed.
func layer2(t *testing.T, a *lab.VM, way string) float64 {
	t.Helper()
	const share = float64(1500-20-20-12) / (1500 + 14) // of a frame that is data
	out := a.OK(t, "berth exec a -- iperf3 -J -c 192.0.2.2 -t 5 -O 2"+map[string]string{"tx": "", "rx": " -R"}[way])
	var r struct {
		End struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return r.End.Received.Bits / share / 1e6
}
