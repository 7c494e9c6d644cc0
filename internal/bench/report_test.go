package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestText(t *testing.T) {
	rep := exampleReport(t)
	var b bytes.Buffer
	if err := rep.Text(&b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(b.String(), "\n") {
		if len([]rune(line)) > 80 {
			t.Errorf("wider than 80 columns: %q", line)
		}
	}
	golden := filepath.Join("testdata", "report.txt")
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Error(diff)
	}
}

// exampleReport is a partial run of made-up trials: a loss, no difference, and one row with too few pairs.
func exampleReport(t *testing.T) *Report {
	t.Helper()
	rows := []Row{newRow(RandomRead, 32<<10, 512), newRow(SequentialWrite, 4096, 1), newRow(SequentialWrite, 65536, 1)}
	r := rand.New(rand.NewPCG(7, 7))
	var trials []Trial
	for round := range 13 {
		for i, row := range rows {
			for _, arm := range []string{"host", "node", "null"} {
				if i == 2 && round > 3 {
					continue
				}
				iops := 40000 * math.Exp(.02*r.NormFloat64())
				if arm == "node" && i == 0 {
					iops *= .6
				}
				trials = append(trials, Trial{Head: Head{Seq: len(trials) + 1, Row: row.Name, Round: round, Arm: arm}, Measured: &Measured{
					IOPS: iops, Bandwidth: iops * float64(row.Block), LatMean: 1e6 / iops * float64(row.Jobs), LatP99: 3e6 / iops * float64(row.Jobs),
				}})
			}
		}
	}
	rep := &Report{
		Format: Format, Seed: 42, Pairs: 12, MarginPct: 5, RunMillis: 1000, Fio: "fio-3.33", Trials: trials,
		Machine: Machine{Kernel: "6.1.0", CPU: "A CPU", Cores: 2, Disk: Disk{Device: "vda", Scheduler: "none", FileSystem: "ext4", Mount: "/srv"}},
		Target:  Target{Kind: "file", Path: "/srv/" + dataFile, Size: 1 << 30, Written: true},
	}
	rep, err := rep.finish(rows, rep.Target, Options{Run: time.Second, Warm: time.Second}, context.Canceled)
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return rep
}

// What the document says can be computed again from the trials in it.
func TestJSON(t *testing.T) {
	rep := exampleReport(t)
	var b bytes.Buffer
	if err := rep.JSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	var rows []Row
	for _, r := range back.Rows {
		rows = append(rows, r.Row)
	}
	again := analyse(rows, back.Trials, back.Machine.Cores, back.MarginPct)
	for i := range again {
		again[i].Command, again[i].Published = back.Rows[i].Command, back.Rows[i].Published
	}
	if diff := cmp.Diff(back.Rows, again); diff != "" {
		t.Error(diff)
	}
}

func TestBarLine(t *testing.T) {
	got := barLine(Progress{What: "write 64K x1 node", Left: 90 * time.Second}, 30*time.Second)
	if want := "[#######.......................]  25 %  1:30 left  write 64K x1 node"; got != want {
		t.Error(got)
	}
	got = barLine(Progress{What: layOut, Done: 1, Total: 2}, time.Second)
	if want := "[###############...............]  50 %  lay out"; got != want {
		t.Error(got)
	}
}
