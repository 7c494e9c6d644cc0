package lab_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/internal/bench/stat"
	"berth/test/lab"
	"berth/test/shares"
	"berth/test/testkit"
)

// syncRatio is what is kept of the weights 800:100 on a file server.
type syncRatio struct {
	What    string      `json:"what"`
	Command string      `json:"command"`
	Started time.Time   `json:"started"`
	Seconds int         `json:"seconds"`          // of a run; each has readers of its own, and 4 s before it that do not count
	Rates   [][]float64 `json:"bytes_per_second"` // of each run: the node with weight 800, the one with 100
	Ratios  []float64   `json:"ratios"`
	Median  float64     `json:"median"`
	Totals  float64     `json:"ratio_of_totals"`
	CI95    [2]float64  `json:"ci95"`               // of the ratio of totals, with runs as units
	Others  []float64   `json:"other_programs_pct"` // of this host's CPUs, in each run
}

// The ratio that is promised for weights 800:100.
const ratioLeast, ratioMost = 6, 10

// TestSyncWeights: without limits, nodes share a full disk of a file server by their weights. A test has 6 windows of 5 s, whose interval must not lie outside
// of what is promised; as data there are 12 runs of 20 s, kept whatever they are.
func TestSyncWeights(t *testing.T) {
	m := twoReaders(t)
	m.Slow(t, 0, 3e6, 0) // a disk that is slow beside the emulated CPUs: else they have nothing waiting at it
	runs, windows, seconds := 1, 6, 5
	if shares.Keeps() {
		runs, windows, seconds = 12, 1, 20
	}
	kept := syncRatio{
		What:    "VNode Sync, cgroup v2, BFQ with low_latency 0: sftp-server, a process a client, four readers a node of weights 800 and 100, a disk of 3 MB/s",
		Command: "make evidence: BERTH_EVIDENCE=docs/evidence BERTH_WALK=all go test -v -run 'TestSyncWeights$' ./test/lab",
		Started: time.Now().UTC().Truncate(time.Second), Seconds: seconds,
	}
	var fast, slow []float64
	for range runs {
		others := lab.Others()
		got := syncCount(t, m, "rbytes", windows, seconds, map[string]string{"slow": readOf("slow"), "fast": readOf("fast")})
		crowd, err := others()
		testkit.Must(t, err)
		kept.Others = append(kept.Others, crowd)
		for _, w := range got {
			kept.Rates, kept.Ratios = append(kept.Rates, []float64{w["fast"], w["slow"]}), append(kept.Ratios, w["fast"]/w["slow"])
			fast, slow = append(fast, w["fast"]), append(slow, w["slow"])
		}
	}
	ratio, ci := stat.RatioOfTotals(fast, slow)
	if ci == nil {
		t.Fatalf("%d windows: %v, %v", len(fast), fast, slow)
	}
	kept.Median, kept.Totals, kept.CI95 = stat.MedianOf(kept.Ratios), ratio, [2]float64{ci.Lo, ci.Hi}
	t.Logf("weights 800:100 gave %.1f (%.1f to %.1f), by %d windows of %d s: %.1f; others took %.0f %% of the host", ratio, ci.Lo, ci.Hi, len(fast), seconds, kept.Ratios, kept.Others)
	if ci.Hi < ratioLeast || ci.Lo > ratioMost {
		judged(t, spare{others: slices.Max(kept.Others)}, []string{fmt.Sprintf("weights 800:100 gave %.1f (%.1f to %.1f), promised are %d to %d", ratio, ci.Lo, ci.Hi, ratioLeast, ratioMost)})
	}
	if !shares.Keeps() {
		return
	}
	text, err := json.MarshalIndent(kept, "", "  ")
	testkit.Must(t, err)
	path := filepath.Join(os.Getenv(shares.Folder), "sync-weights", "v2.json")
	testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Must(t, os.WriteFile(path, append(text, '\n'), 0o644))
}
