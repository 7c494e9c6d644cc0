package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// made writes a report in the format of berth bench disk and returns its path.
func made(t *testing.T, seed uint64, margin float64) string {
	t.Helper()
	r := result.Study{Format: result.Format, Seed: seed, MarginPct: margin, Tools: []result.Tool{{Name: "fio", Version: "fio-3.33"}}}
	r.Machine.Kernel, r.Machine.Cores = "6.18.44", 2
	e := result.Experiment{Design: result.Design{Pairs: 20, RunMillis: 300}}
	for _, n := range []string{"read 4K x32", "write 32K x1"} {
		c := &stat.Comparison{Pairs: 20, PenaltyPct: -11.25, CI95Pct: &[2]float64{-310.1, 17.8}, Verdict: stat.Equivalent}
		e.Rows = append(e.Rows, result.Row{
			Name: n, Arms: []result.ArmMedian{{Arm: result.Host, Values: map[string]float64{"iops": 147686}}},
			Compared: []result.Comparison{{Arm: result.Null, Measure: "iops", Penalty: c}, {Arm: result.Node, Measure: "iops", Penalty: c}},
		})
	}
	r.Experiments = []result.Experiment{e}
	text, err := json.Marshal(r)
	path := filepath.Join(t.TempDir(), fmt.Sprint(seed, ".json"))
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTable checks that the table shows every run with its interval and verdict, the margin and the seeds, and that runs with
// different margins are refused.
func TestTable(t *testing.T) {
	runs, err := disks([]string{made(t, 1, 10), made(t, 2, 10), made(t, 3, 10)})
	if err != nil {
		t.Fatal(err)
	}
	text := table(runs)
	if n := strings.Count(text, "equivalent"); n != 6 {
		t.Errorf("%d results of 3 runs of 2 rows:\n%s", n, text)
	}
	for _, want := range []string{"seeds 1, 2, 3", "margin 10 %", "-11.2 (-310.1..+17.8)  equivalent"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(line) > 81 {
			t.Errorf("longer than 80 columns: %s", line)
		}
	}
	if _, err := disks([]string{made(t, 1, 10), made(t, 2, 5)}); err == nil {
		t.Error("runs with two margins make one table")
	}
}
