package report

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"berth/internal/bench"
)

// TestEvidence shows every JSON of docs/evidence in each form.
func TestEvidence(t *testing.T) {
	files, err := filepath.Glob("../../docs/evidence/*.json*")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			r, err := Read(f, filepath.Base(path))
			if err != nil {
				t.Fatal(err)
			}
			var text, page, table bytes.Buffer
			if err := r.Text(&text); err != nil {
				t.Error(err)
			}
			if err := r.HTML(&page); err != nil {
				t.Error(err)
			}
			if err := r.CSV(&table); err != nil {
				t.Error(err)
			}
			for line := range strings.Lines(text.String()) {
				if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > textWidth {
					t.Errorf("wider than %d columns: %q", textWidth, line)
				}
			}
			for _, e := range r.Study.Experiments {
				if e.Skipped == "" && (len(e.Rows) == 0 || !strings.Contains(text.String(), e.Rows[0].Name) && len(lines(&e)) > 0) {
					t.Errorf("%s has nothing to show", e.Name)
				}
			}
			if len(r.Study.Experiments) == 0 || page.Len() < 2000 || strings.Count(table.String(), "\n") < 2 {
				t.Errorf("%d experiments, a page of %d bytes, a table of %q", len(r.Study.Experiments), page.Len(), table.String())
			}
		})
	}
}

// TestKeptForms shows a report of make bench-start, and headlines of the first format and of the one with sessions.
func TestKeptForms(t *testing.T) {
	for _, c := range []struct {
		name, doc string
		want      []string
	}{
		{
			"start", `{"format": "berth-bench-start/1", "runs": 5, "batch": {"trials": 5, "dropped": 2, "why": "it carries over"}, "rows": [
			{"what": "run / runc run", "unit": "ms", "berth": 14, "other": 10, "ratio": {"rounds": 5, "factor": 1.4, "ci95": [1.3, 1.48]}, "target": "at most 1.5 times", "met": true,
			 "runs": [{"berth": 14, "other": 10}], "carry_over": [{"arm": "runc", "p": 0.4, "p_corrected": 0.8}]},
			{"what": "berth --version", "unit": "ms", "berth": 1, "target": "under 10 ms", "met": true}]}`,
			[]string{"+40.0 (+30.0..+48.0)", "5 trials of an arm in a row", "not shown to differ", "at most 1.5 times: met"},
		},
		{
			"headline", `{"format": "berth-headline/2", "trials": [` + strings.Repeat(`
			{"session": 1, "round": 0, "arm": "alone", "p50_ms": 1, "p99_ms": 9},`, 2) + trialsOf(7) + `]}`,
			[]string{"+900", "EMULATED"},
		},
		{"shares", `{"format": "berth-shares/1", "rows": [
			{"kind": "share", "name": "bfq 75:25", "asked": [75, 25], "bytes_per_second": [[74, 26], [78, 22], [76, 24]]},
			{"kind": "rate", "name": "10 MB/s", "asked": [1e7], "bytes_per_second": [[9.9e6], [1e7]]}]}`, []string{"shares: Shares of a disk by weight", "rates: Rates"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Read(strings.NewReader(c.doc), c.name)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := r.Text(&b); err != nil {
				t.Fatal(err)
			}
			flat := strings.Join(strings.Fields(b.String()), " ")
			for _, w := range c.want {
				if !strings.Contains(flat, w) {
					t.Errorf("%q is not in\n%s", w, b.String())
				}
			}
		})
	}
}

func trialsOf(rounds int) string {
	var all []string
	for i := range rounds {
		for _, arm := range []string{"alone", "io.max"} {
			ms := map[string]string{"alone": "1", "io.max": "10"}[arm]
			all = append(all, `{"session": 1, "round": `+string(rune('1'+i))+`, "arm": "`+arm+`", "p50_ms": `+ms+`, "p99_ms": `+ms+`}`)
		}
	}
	return strings.Join(all, ",\n")
}

// told returns the text of an experiment with one trial per length, in ms.
func told(t *testing.T, walls ...int64) string {
	t.Helper()
	e := bench.Experiment{
		About: bench.About{Name: "start", Measures: []bench.Measure{{Name: "ms", Unit: "ms", LessIsBetter: true, Compared: true}}},
		Arms:  []bench.ArmInfo{{Name: "runc"}, {Name: "berth"}}, Rows: []bench.StudyRow{{Name: "r", Flags: []bench.Flag{bench.Disturbed}}},
	}
	zero := 0.0
	for i, wall := range walls {
		e.Trials = append(e.Trials, bench.StudyTrial{
			Head: bench.Head{Row: "r", Round: i + 1, Arm: "berth", WallMS: wall}, Values: map[string]float64{"ms": 1},
			Conditions: bench.Conditions{StealPct: &zero, OtherPct: &zero}, // as earlier versions wrote
		})
	}
	s := bench.Study{Format: bench.StudyFormat, MarginPct: 5, Machine: bench.Machine{Cores: 2}, Experiments: []bench.Experiment{e}}
	var doc, text bytes.Buffer
	if err := s.JSON(&doc); err != nil {
		t.Fatal(err)
	}
	r, err := Read(&doc, "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

// TestNotMeasuredIsNotZero checks that a figure that a trial is too short to measure is not shown as 0 %.
func TestNotMeasuredIsNotZero(t *testing.T) {
	short, long, both := told(t, 10, 12), told(t, 600, 700), told(t, 10, 600)
	if strings.Contains(short, "by other programs 0 %") || !strings.Contains(short, "not measured, the trials are too short") || strings.Contains(short, "was seen to use the machine") {
		t.Errorf("starts: %s", short)
	}
	if !strings.Contains(long, "by other programs 0 %") || strings.Contains(long, "too short") || !strings.Contains(long, "in 0 of 2 trials that can tell") {
		t.Errorf("long trials: %s", long)
	}
	if !strings.Contains(both, "told of 1 trial; the others are too short") || !strings.Contains(both, "in 0 of 1 trial that can tell") {
		t.Errorf("some: %s", both)
	}
}

// TestPublishedFigureOfAnArm checks that a published figure of SR-IOV stands in the column of SR-IOV, or in none.
func TestPublishedFigureOfAnArm(t *testing.T) {
	for _, c := range []struct {
		arms []string
		arm  string
		what string
		in   []int // columns of the published line that have a figure
	}{
		{[]string{"bridge", "sriov"}, "sriov", "LXC with SR-IOV", []int{2, 5, 6}},
		{[]string{"bridge", "macvlan"}, "sriov", "LXC with SR-IOV", []int{2}},
		{[]string{"bridge", "macvlan"}, "", "LXC with SR-IOV, as older documents tell it", []int{2}},
	} {
		e := bench.Experiment{
			About: bench.About{Name: "net", Measures: []bench.Measure{{Name: "bits", Unit: "bit/s", Compared: true}}}, Arms: []bench.ArmInfo{{Name: "host"}},
			Rows: []bench.StudyRow{{Name: "to the peer", Published: []bench.Figure{{Measure: "bits", Host: 9.40e9, Node: 9.43e9, PenaltyPct: -.32, What: c.what, Arm: c.arm}}}},
		}
		r := &e.Rows[0]
		for i, a := range append([]string{"host"}, c.arms...) {
			if i > 0 {
				e.Arms = append(e.Arms, bench.ArmInfo{Name: a})
				r.Compared = append(r.Compared, bench.StudyComparison{Arm: a, Measure: "bits", Penalty: &bench.Comparison{}})
			}
			r.Arms = append(r.Arms, bench.ArmMedian{Arm: a, Values: map[string]float64{"bits": 1e9}})
		}
		cells := longTable(&e).Lines[1].Cells
		for i, cell := range cells[2:] {
			if (cell.Text != "") != slices.Contains(c.in, i+2) {
				t.Errorf("%v, figure of %q: column %d has %q", c.arms, c.arm, i+2, cell.Text)
			}
		}
		for _, l := range lines(&e) {
			if (l.printed != nil) != (l.arm == "sriov") {
				t.Errorf("%v: beside %s stands %+v", c.arms, l.arm, l.printed)
			}
		}
	}
}

// TestPageAndOneByOne checks that an answer gives the verdicts with and without the correction for multiple comparisons.
func TestPageAndOneByOne(t *testing.T) {
	r := open(t, "testdata/small.json")
	a := r.Answer()
	for _, want := range []string{"2 worse, 1 better, 1 undecided; none equivalent", "corrected for all 4 together", "one by one: 1 equivalent, 2 worse, 1 better"} {
		if !strings.Contains(a.Headline, want) {
			t.Errorf("%q is not in %q", want, a.Headline)
		}
	}
}
