package wire

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStreamCommand(t *testing.T) {
	got := strings.Join((&NetOptions{Port: 5201}).StreamCommand(FromPeer, "2001:db8::9", 20*time.Second, 3*time.Second), " ")
	want := "iperf3 --client 2001:db8::9 --port 5201 --json --time 20 --omit 3 --reverse"
	if got != want {
		t.Error(got)
	}
}

// A stream of a real iperf3: the CPU time is set against the warm-up's bytes too, the throughput is not.
func TestParseIperf(t *testing.T) {
	out, err := os.ReadFile(filepath.Join("testdata", "iperf3-reverse.json"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseIperf(out, 2.391)
	if err != nil {
		t.Fatal(err)
	}
	got["cpu_s_per_gb"] = math.Round(got["cpu_s_per_gb"]*1e6) / 1e6
	want := map[string]float64{"bits_per_second": 93128179683.953049, "cpu_s_per_gb": 0.1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseIperf(f *testing.F) {
	out, err := os.ReadFile(filepath.Join("testdata", "iperf3-reverse.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(out, 1.0)
	f.Add([]byte(`{"error":"unable to connect"}`), 0.0)
	f.Add([]byte(`{"end":{"sum_received":{"bits_per_second":1,"seconds":1}}}`), 0.0)
	f.Fuzz(func(t *testing.T, out []byte, cpu float64) {
		if m, err := parseIperf(out, cpu); err == nil && (!(m["bits_per_second"] > 0) || m["cpu_s_per_gb"] < 0) {
			t.Errorf("accepted %+v", m)
		}
	})
}

func TestParseBusy(t *testing.T) {
	got, err := parseBusy("cpu  100 20 30 4000 500 6 7 800 90 10\ncpu0 1 2 3\n")
	if err != nil || math.Abs(got-1.63) > 1e-9 {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7", "cpu a 2 3 4 5 6 7", "intr 1 2 3 4 5 6 7 8"} {
		if _, err := parseBusy(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func FuzzParseBusy(f *testing.F) {
	f.Add("cpu  100 20 30 4000 500 6 7 800 90 10\n")
	f.Fuzz(func(t *testing.T, proc string) {
		if busy, err := parseBusy(proc); err == nil && !(busy >= 0) {
			t.Errorf("%v", busy)
		}
	})
}

func TestQuantile(t *testing.T) {
	x := make([]time.Duration, 200)
	for i := range x {
		x[i] = time.Duration(i + 1)
	}
	if p50, p99 := quantile(x, .5), quantile(x, .99); p50 != 101 || p99 != 199 {
		t.Errorf("%d %d", p50, p99)
	}
	if quantile(x[:1], .99) != 1 {
		t.Error("of one value")
	}
}
