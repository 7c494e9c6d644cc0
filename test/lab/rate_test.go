package lab_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth/test/lab"
)

// TestRates limits a node in both directions, on a virtual function and on a macvlan, and measures the rate against a machine at
// the other end of a cable: within 3 % at layer 2. The card does not enforce its driver's own limit and has none for receiving.
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
				t.Run(fmt.Sprintf("%s %s %d", mode, way, mbit), func(t *testing.T) {
					// tx is counted by the receiving machine, rx by the node's qdisc behind the limit.
					at := counter{b, nil, "cat /sys/class/net/$(basename /sys/class/net/e*)/statistics/rx_bytes"}
					if way == "rx" {
						pid := a.OK(t, `berth show --json a | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*'`)
						at = counter{a, []string{"nsenter", "-t", pid, "-n"}, `tc -s qdisc | awk '/^qdisc/ {kind = $2} /Sent/ && kind == "tbf" {n += $2} END {print n}'`}
					}
					measure(t, a, at, way, mbit)
				})
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

// counter is a script that prints a byte count, the machine to run it in, and a command prefix to enter a namespace.
type counter struct {
	in     *lab.VM
	prefix []string
	script string
}

// measure measures the rate up to five times, because emulated machines stall, and passes at the first result within 3 %. A rate
// that is exceeded fails at once.
func measure(t *testing.T, a *lab.VM, at counter, way string, mbit int) {
	t.Helper()
	for try := 1; ; try++ {
		low, high := layer2(t, a, at, way)
		limit := float64(mbit)
		t.Logf("at layer 2 between %.2f and %.2f Mbit/s (%+.2f to %+.2f %%)", low, high, (low/limit-1)*100, (high/limit-1)*100)
		switch {
		case low > 1.03*limit:
			t.Fatalf("%s %d Mbit/s is exceeded by %.2f %%", way, mbit, (low/limit-1)*100)
		case low >= 0.97*limit && high <= 1.03*limit:
			return
		case try == 5:
			t.Fatalf("%s %d Mbit/s is not proved within 3 %%", way, mbit)
		}
	}
}

// layer2 returns a lower and an upper bound of a TCP stream's rate over 6 s, in Mbit/s of whole frames. It reads the clock before
// and after each reading of the counter, so both bounds hold even if the emulated machine stalls in between.
func layer2(t *testing.T, a *lab.VM, at counter, way string) (low, high float64) {
	t.Helper()
	a.OK(t, "berth exec a -- iperf3 -c 192.0.2.2 -t 10"+map[string]string{"tx": "", "rx": " -R"}[way]+" </dev/null >/dev/null 2>&1 & sleep 2")
	look := "read now rest </proc/uptime; echo $now; " + at.script + "; read now rest </proc/uptime; echo $now; "
	r := at.in.Run(t, append(slices.Clip(at.prefix), "bash", "-ec", look+"sleep 6; "+look)...)
	var v [6]float64
	for i, word := range strings.Fields(r.Out) {
		var err error
		if v[min(i, 5)], err = strconv.ParseFloat(word, 64); err != nil {
			t.Fatalf("%v: %s%s", err, r.Out, r.Err)
		}
	}
	a.OK(t, "while pidof iperf3 >/dev/null; do sleep 0.2; done")
	mbit := (v[4] - v[1]) * 8 / 1e6
	return mbit / (v[5] - v[0]), mbit / (v[3] - v[2])
}
