package lab_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/wire"
	"berth/test/lab"
)

// TestBenchNet measures host, macvlan and sriov against a peer on another machine: both directions, round trips, in one
// table and one JSON. That something is measured is tested, not how much: it may run beside another lab.
func TestBenchNet(t *testing.T) {
	t.Parallel()
	small := lab.Machine{CPUs: 1, Memory: 768, NICs: []lab.NIC{{Segment: "wire"}}}
	l := lab.Start(t, lab.Options{Machines: []lab.Machine{small, small}})
	adapter := make([]string, 2)
	for i := range adapter {
		m := l.VM(i)
		install(t, m)
		adapter[i] = m.OK(t, fmt.Sprintf("n=$(basename /sys/class/net/e*); ip link set $n up; ip addr add 192.0.2.%d/24 dev $n; echo $n", i+1))
	}
	l.VM(1).OK(t, fmt.Sprintf("nohup berth bench net --serve >/dev/null 2>&1 </dev/null & while awaiting; do ss -ltn | grep -q :%d && exit; done; exit 1", wire.DefaultPort))
	a := l.VM(0)
	a.OK(t, "berth vf enable --yes "+adapter[0]+" 1")
	out := a.RunFor(t, 4*time.Minute, "berth", "bench", "net", "--peer", "192.0.2.2", "--quick", "--pairs", "1", "--json", "/root/net.json",
		"--network", "macvlan:"+adapter[0]+",192.0.2.51/24", "--network", "sriov:"+adapter[0]+",192.0.2.52/24")
	if out.Code != 0 {
		t.Fatalf("exit code %d: %s%s", out.Code, out.Out, out.Err)
	}
	t.Logf("\n%s", out.Out)
	var study result.Study
	if err := json.Unmarshal([]byte(a.OK(t, "cat /root/net.json")), &study); err != nil {
		t.Fatal(err)
	}
	if len(study.Experiments) != 1 || len(study.Experiments[0].Rows) != 3 {
		t.Fatalf("%+v", study)
	}
	for _, row := range study.Experiments[0].Rows {
		var arms []string
		for _, arm := range row.Arms {
			arms = append(arms, arm.Arm)
			if arm.Values["bits_per_second"] == 0 && arm.Values["p50_us"] == 0 {
				t.Errorf("%s, %s: nothing measured", row.Name, arm.Arm)
			}
		}
		if want := []string{"host", "null", "macvlan", "sriov"}; !slices.Equal(arms, want) {
			t.Errorf("%s: arms %v, want %v", row.Name, arms, want)
		}
	}
}
