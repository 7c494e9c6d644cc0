package report

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// TestEvidence shows every JSON of docs/evidence in each form.
func TestEvidence(t *testing.T) {
	files, err := filepath.Glob("../../../docs/evidence/*.json*")
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

// TestStudyOfOthers shows the study that a document of another format carries.
func TestStudyOfOthers(t *testing.T) {
	r, err := Read(strings.NewReader(`{"format": "berth-shares/1", "rows": [], "study": {"format": "berth-bench/2", "experiments": [
		{"name": "shares", "title": "Shares of a disk", "measures": [{"name": "share"}], "arms": [{"name": "asked"}, {"name": "node"}],
		 "rows": [{"name": "bfq 75:25, node 1", "arms": [{"arm": "node", "values": {"share": 74}}]}]}]}}`), "shares")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.Text(&b); err != nil || !strings.Contains(b.String(), "shares: Shares of a disk") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// told returns the text of an experiment with one trial per length, in ms.
func told(t *testing.T, walls ...int64) string {
	t.Helper()
	e := result.Experiment{
		About: result.About{Name: "start", Measures: []result.Measure{{Name: "ms", Unit: "ms", LessIsBetter: true, Compared: true}}},
		Arms:  []result.Arm{{Name: "runc"}, {Name: "berth"}}, Rows: []result.Row{{Name: "r", Flags: []result.Flag{result.Disturbed}}},
	}
	zero := 0.0
	conditions := func(wall int64) *result.Conditions { // as the engine tells them: of a short trial none
		if wall < 500 {
			return &result.Conditions{}
		}
		return &result.Conditions{StealPct: &zero, OtherPct: &zero}
	}
	for i, wall := range walls {
		e.Trials = append(e.Trials, result.Trial{
			Head: result.Head{Row: "r", Round: i + 1, Arm: "berth", WallMS: wall}, Values: map[string]float64{"ms": 1},
			Conditions: conditions(wall),
		})
	}
	s := result.Study{Format: result.Format, MarginPct: 5, Machine: result.Machine{Cores: 2}, Experiments: []result.Experiment{e}}
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
		e := result.Experiment{
			About: result.About{Name: "net", Measures: []result.Measure{{Name: "bits", Unit: "bit/s", Compared: true}}}, Arms: []result.Arm{{Name: "host"}},
			Rows: []result.Row{{Name: "to the peer", Published: []result.Figure{{Measure: "bits", Host: 9.40e9, Node: 9.43e9, PenaltyPct: -.32, What: c.what, Arm: c.arm}}}},
		}
		r := &e.Rows[0]
		for i, a := range append([]string{"host"}, c.arms...) {
			if i > 0 {
				e.Arms = append(e.Arms, result.Arm{Name: a})
				r.Compared = append(r.Compared, result.Comparison{Arm: a, Measure: "bits", Penalty: &stat.Comparison{}})
			}
			r.Arms = append(r.Arms, result.ArmMedian{Arm: a, Values: map[string]float64{"bits": 1e9}})
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
