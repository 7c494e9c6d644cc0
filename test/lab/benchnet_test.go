package lab_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/test/lab"
)

// TestBenchNet measures host, macvlan and sriov against a peer on another machine: both directions, round trips, in one
// table and one JSON.
func TestBenchNet(t *testing.T) {
	small := lab.Machine{CPUs: 1, Memory: 768, NICs: []lab.NIC{{Segment: "wire"}}}
	l := lab.Start(t, lab.Options{Machines: []lab.Machine{small, small}})
	bin := filepath.Join(t.TempDir(), "berth")
	if err := lab.BuildBerth(t.Context(), bin); err != nil {
		t.Fatal(err)
	}
	adapter := make([]string, 2)
	for i := range adapter {
		m := l.VM(i)
		m.Copy(t, bin, "/usr/local/bin/berth")
		adapter[i] = m.OK(t, fmt.Sprintf("n=$(basename /sys/class/net/e*); ip link set $n up; ip addr add 192.0.2.%d/24 dev $n; echo $n", i+1))
	}
	l.VM(1).OK(t, "nohup berth bench net --serve >/dev/null 2>&1 </dev/null & sleep 1")
	a := l.VM(0)
	a.OK(t, "berth vf enable --yes "+adapter[0]+" 1")
	out := a.RunFor(t, 4*time.Minute, "berth", "bench", "net", "--peer", "192.0.2.2", "--quick", "--pairs", "1", "--json", "/root/net.json",
		"--network", "macvlan:"+adapter[0]+",192.0.2.51/24", "--network", "sriov:"+adapter[0]+",192.0.2.52/24")
	if out.Code != 0 {
		t.Fatalf("exit code %d: %s%s", out.Code, out.Out, out.Err)
	}
	t.Logf("\n%s", out.Out)
	var report struct {
		OwnPeer bool `json:"own_peer"`
		Rows    []struct {
			Name string
			Arms []struct {
				Arm           string
				BitsPerSecond float64 `json:"bits_per_second"`
				P50           float64 `json:"p50_us"`
			}
		}
	}
	if err := json.Unmarshal([]byte(a.OK(t, "cat /root/net.json")), &report); err != nil {
		t.Fatal(err)
	}
	if report.OwnPeer || len(report.Rows) != 3 {
		t.Fatalf("%+v", report)
	}
	for _, row := range report.Rows {
		var arms []string
		for _, arm := range row.Arms {
			arms = append(arms, arm.Arm)
			if arm.BitsPerSecond == 0 && arm.P50 == 0 {
				t.Errorf("%s, %s: nothing measured", row.Name, arm.Arm)
			}
		}
		if want := []string{"host", "null", "macvlan", "sriov"}; !slices.Equal(arms, want) {
			t.Errorf("%s: arms %v, want %v", row.Name, arms, want)
		}
	}
}
