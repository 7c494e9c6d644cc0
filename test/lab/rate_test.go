package lab_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth/test/lab"
	"berth/test/sample"
	"berth/test/shares"
)

// TestRates limits a node in both directions, on a virtual function and on a macvlan, and measures the rate against a machine at
// the other end of a cable: within 3 % at layer 2. The card does not enforce its driver's own limit and has none for receiving.
func TestRates(t *testing.T) {
	a, b, pf := joined(t)
	b.OK(t, "iperf3 -s -D >/dev/null 2>&1")
	taken := sample.Some(sample.Of(t), 4, "sriov tx 10", "sriov rx 10", "sriov tx 100", "sriov rx 100", "macvlan tx 10", "macvlan rx 10", "macvlan tx 100", "macvlan rx 100")
	for _, mode := range []string{"sriov", "macvlan"} {
		spec := fmt.Sprintf("name: a\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: %s, parent: %s, address: [192.0.2.1/24]}]\n", mode, pf)
		a.Write(t, "/root/a.yaml", spec)
		a.OK(t, "berth apply -f /root/a.yaml")
		for _, mbit := range []int{10, 100} {
			for _, way := range []string{"tx", "rx"} {
				name := fmt.Sprintf("%s %s %d", mode, way, mbit)
				if !slices.Contains(taken, name) {
					continue
				}
				a.OK(t, fmt.Sprintf("berth set a net.eth0.%s=%dMbit/s net.eth0.%s=max", way, mbit, map[string]string{"tx": "rx", "rx": "tx"}[way]))
				t.Run(name, func(t *testing.T) {
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

// joined starts two machines that a cable joins, the first with berth and a virtual function of its adapter pf.
func joined(t *testing.T) (a, b *lab.VM, pf string) {
	t.Helper()
	small := lab.Machine{CPUs: 1, Memory: 768, NICs: []lab.NIC{{Segment: "wire"}}}
	l := lab.Start(t, lab.Options{Machines: []lab.Machine{small, small}})
	a, b = l.VM(0), l.VM(1)
	install(t, a)
	const adapter = "n=$(basename $(ls -d /sys/class/net/e*)); ip link set $n up; "
	b.OK(t, adapter+"ip addr add 192.0.2.2/24 dev $n")
	return a, b, a.OK(t, adapter+"berth vf enable $n 1 >/dev/null; echo $n")
}

// counter is a script that prints a byte count, the machine to run it in, and a command prefix to enter a namespace.
type counter struct {
	in     *lab.VM
	prefix []string
	script string
}

// measure compares the rate of a TCP stream, in bytes of whole frames, with the limit: by windows whose number was fixed before,
// all together, with their interval. Nothing is measured again. A rate below the limit is blamed on the emulated machine if it
// was late; one above the limit is not.
func measure(t *testing.T, a *lab.VM, at counter, way string, mbit int) {
	t.Helper()
	const windows = 8
	others := lab.Others()
	a.Write(t, "/tmp/witness.sh", witness)
	a.OK(t, "berth exec a -- iperf3 -c 192.0.2.2 -t 60"+map[string]string{"tx": "", "rx": " -R"}[way]+" </dev/null >/dev/null 2>&1 & "+
		"sleep 2; bash /tmp/witness.sh </dev/null >/dev/null 2>&1 & echo $! >/tmp/witness.pid")
	look := "read now rest </proc/uptime; echo $now; " + at.script + "; read now rest </proc/uptime; echo $now; "
	r := at.in.Run(t, append(slices.Clip(at.prefix), "bash", "-ec", fmt.Sprintf("%s for i in $(seq %d); do sleep 1; %s done", look, windows, look))...)
	late := strings.Fields(a.OK(t, "kill $(cat /tmp/witness.pid); while kill -0 $(cat /tmp/witness.pid) 2>/dev/null; do sleep 0.05; done; cat /tmp/witness; "+
		"pkill -x iperf3; while pidof iperf3 >/dev/null; do sleep 0.1; done"))
	row := &shares.Row{Kind: shares.Rate, Name: fmt.Sprintf("%s %d Mbit/s", way, mbit), Asked: []float64{float64(mbit) * 1e6 / 8}, Seconds: 1}
	row.Late = 100 * float64(number(t, late[1])) / float64(number(t, late[2]))
	var v []float64
	for word := range strings.FieldsSeq(r.Out) {
		n, err := strconv.ParseFloat(word, 64)
		if err != nil {
			t.Fatalf("%v: %s%s", err, r.Out, r.Err)
		}
		v = append(v, n)
	}
	if len(v) != 3*(windows+1) {
		t.Fatalf("%d numbers: %s%s", len(v), r.Out, r.Err)
	}
	for i := 3; i < len(v); i += 3 { // from the middle of one look to the middle of the next
		row.Got = append(row.Got, []float64{(v[i+1] - v[i-2]) / ((v[i]+v[i+2])/2 - (v[i-3]+v[i-1])/2)})
	}
	t.Log(row.Text())
	wrong := row.Within(3)
	if len(wrong) > 0 && row.Parts()[0].Got > 103 {
		t.Fatal(strings.Join(wrong, "\n"))
	}
	crowd, err := others()
	if err != nil {
		t.Fatal(err)
	}
	judged(t, spare{row.Late, crowd}, wrong)
}
