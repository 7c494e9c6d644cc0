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
				measure(t, a, mode+" "+way, mbit, map[string]string{"tx": "", "rx": " -R"}[way])
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

// measure takes 5 s of TCP, after 2 in which it finds the rate. Emulated machines stall: too little is measured again.
func measure(t *testing.T, a *lab.VM, what string, mbit int, flags string) {
	t.Helper()
	const share = float64(1500-20-20-12) / (1500 + 14) // of a frame that is data
	for try := 1; ; try++ {
		out := a.OK(t, "berth exec a -- iperf3 -J -c 192.0.2.2 -t 5 -O 2"+flags)
		var r struct {
			End struct {
				Sent struct {
					Retransmits int
				} `json:"sum_sent"`
				Received struct {
					Bits float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got := r.End.Received.Bits / share / 1e6
		off := (got/float64(mbit) - 1) * 100
		t.Logf("%s %d: at layer 2 %.2f Mbit/s (%+.2f %%), %d segments sent again", what, mbit, got, off, r.End.Sent.Retransmits)
		if math.Abs(off) <= 3 {
			return
		}
		if off > 0 || try == 5 {
			t.Errorf("%s %d Mbit/s is off by %+.2f %%", what, mbit, off)
			return
		}
	}
}
