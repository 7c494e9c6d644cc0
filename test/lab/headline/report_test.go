package headline

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"berth/tools/marks"
)

// made returns a report of simulated trials. wait gives a trial's approximate p50 and p99 in milliseconds.
func made(seed uint64, rounds int, names []string, wait func(arm, before string) float64) *Report {
	r := &Report{Format: Format, Plan: Options{Rounds: rounds, Arms: names, Reads: 20, Seconds: 2, Seed: seed}, DiskBytes: diskBytes, DiskRequests: diskRequests}
	r.begin()
	random, before := rand.New(rand.NewPCG(seed, 1)), ""
	for round := 1; round <= rounds; round++ {
		for _, i := range random.Perm(len(names)) {
			a, half := names[i], strings.HasPrefix(names[i], "half/")
			t := Trial{Session: 1, Round: round, Arm: a, Before: before, State: a, Work: Work{CPU: .8, Read: 10e6, Written: 11e6}}
			if half {
				t.Idle = &Work{CPU: .8, Read: 10e6, Written: 25e6}
			}
			noise := math.Exp(.3 * random.NormFloat64())
			for range r.Plan.Reads {
				t.LatUS = append(t.LatUS, int64(1e3*wait(a, before)*noise*math.Exp(.05*random.NormFloat64())))
			}
			t.P50, t.P99 = quantiles(t.LatUS)
			r.Trials, before = append(r.Trials, t), a
		}
	}
	r.Partial = false
	r.compute()
	return r
}

func steady(string, string) float64 { return 10 }

// TestEqualArms checks that with equal arms few comparisons are called different, and protection removes nothing.
func TestEqualArms(t *testing.T) {
	called, all, removed := 0, 0, 0
	for seed := range uint64(40) {
		r := made(seed, 9, Names(), steady)
		for _, c := range r.Compared {
			if c.What != p50 && c.What != p99 {
				continue
			}
			if all++; c.Verdict == Less || c.Verdict == More {
				called++
			}
		}
		for _, x := range r.Removed {
			if x.Protected.Removed != nil {
				removed++
			}
		}
	}
	if part := float64(called) / float64(all); part > .06 { // 5 %, and the chance of 40 tables
		t.Errorf("%d of %d comparisons of equal arms are called different", called, all)
	}
	if part := float64(removed) / (40 * 8); part > .06 {
		t.Errorf("%d of 320 arms are said to remove what nobody added", removed)
	}
}

// TestUnequalArms checks that a factor of 20 is found, in the right direction, and that its removal is reported.
func TestUnequalArms(t *testing.T) {
	r := made(3, 9, Names(), func(arm, _ string) float64 {
		if arm == Unprotected || arm == CPUOnly {
			return 200
		}
		return 10
	})
	for _, c := range r.Compared {
		want := ""
		switch {
		case c.What == work || c.What == left:
			want = Equivalent
		case c.A == Protected && (c.B == Unprotected || c.B == CPUOnly), c.A == DiskOnly && c.B == Unprotected:
			want = Less
		case c.A == CPUOnly && c.B == Unprotected:
			continue
		}
		if want != "" && c.Verdict != want {
			t.Errorf("%s / %s, %s: %s %v, want %s", c.A, c.B, c.What, c.Verdict, c.CI, want)
		}
	}
	for _, x := range r.Removed {
		if x.Arm == Protected && (x.Protected.Removed == nil || math.Abs(x.Protected.Removed.Pct-100) > 15) {
			t.Errorf("removed: %+v", x.Protected.Removed)
		}
	}
}

// TestCarryOver checks that carry-over from full arms is detected, and seldom reported where there is none.
func TestCarryOver(t *testing.T) {
	full := map[string]bool{}
	for _, a := range arms("") {
		full[a.Name] = a.Full
	}
	seen, false5 := 0, 0
	for seed := range uint64(20) {
		r := made(seed, 9, Names(), func(_, before string) float64 {
			if full[before] {
				return 15
			}
			return 10
		})
		if r.CarryOver[0].P < .05 && r.CarryOver[0].Ratio > 1.2 {
			seen++
		}
		if made(seed, 9, Names(), steady).CarryOver[0].P < .05 {
			false5++
		}
	}
	if seen < 19 {
		t.Errorf("half as long again after a full arm: seen in %d of 20 runs", seen)
	}
	if false5 > 4 { // 1 is expected; 3 in 1,000 such tests have more than 4
		t.Errorf("no carry-over: called in %d of 20 runs", false5)
	}
}

// TestResume checks that an interrupted round is measured again as a whole and that the others are kept.
func TestResume(t *testing.T) {
	r := made(5, 9, Names(), steady)
	r.Trials = r.Trials[:4*len(Names())+5]
	var kept bytes.Buffer
	if err := r.JSON(&kept); err != nil {
		t.Fatal(err)
	}
	back, err := Read(&kept)
	if err != nil {
		t.Fatal(err)
	}
	if back.begin(); back.rounds() != 4 || len(back.Trials) != 4*len(Names()) || back.Sessions != 2 || !back.Partial || back.last != "" {
		t.Errorf("%d rounds, %d trials, session %d, partial %v", back.rounds(), len(back.Trials), back.Sessions, back.Partial)
	}
}

// TestReadComputes checks that all computed fields follow from the trials in the file.
func TestReadComputes(t *testing.T) {
	r := made(6, 9, Names(), steady)
	var kept bytes.Buffer
	if err := r.JSON(&kept); err != nil {
		t.Fatal(err)
	}
	back, err := Read(&kept)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{cmp.Diff(r.Compared, back.Compared), cmp.Diff(r.Arms, back.Arms), cmp.Diff(r.CarryOver, back.CarryOver), cmp.Diff(r.Removed, back.Removed)} {
		if d != "" {
			t.Error(d)
		}
	}
}

// TestStates checks that a trial is refused if the kernel's settings differ from those in the arm's other trials.
func TestStates(t *testing.T) {
	r := made(7, 2, Names(), steady)
	if err := r.same(Trial{Arm: Alone, State: Alone}); err != nil {
		t.Error(err)
	}
	if err := r.same(Trial{Arm: Alone, State: "scheduler bfq"}); err == nil {
		t.Error("another state of the machine is taken")
	}
}

// TestText checks that no line exceeds 80 columns, also with large numbers, and that each arm and main question is there.
func TestText(t *testing.T) {
	for _, names := range [][]string{Names(), {Unprotected, Protected}} {
		r := made(8, 9, names, func(arm, _ string) float64 {
			if arm == Unprotected {
				return 5000
			}
			return 1
		})
		var b strings.Builder
		if err := r.Text(&b); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("longer than 80 columns: %s", line)
			}
		}
		if adds := strings.Contains(b.String(), "What protect adds over two lines of shell"); adds != (len(names) > 2) {
			t.Errorf("what protect adds is told: %v, of arms %v", adds, names)
		}
		for _, n := range names {
			if !strings.Contains(b.String(), "\n"+n+" ") {
				t.Errorf("no arm %s in\n%s", n, b.String())
			}
		}
	}
}

// TestQuestions checks the number of main questions, on which their interval level depends, and that all arms in them exist.
func TestQuestions(t *testing.T) {
	n := 0
	for _, q := range questions() {
		if q.main {
			n++
		}
		if !slices.Contains(Names(), q.a) || !slices.Contains(Names(), q.b) {
			t.Errorf("%s / %s", q.a, q.b)
		}
	}
	if n != mains {
		t.Errorf("%d main questions, their intervals are for %d", n, mains)
	}
}

// TestPage checks that the table of docs/isolation.md and the .txt file equal those made from the kept data.
func TestPage(t *testing.T) {
	const kept = "../../../docs/evidence/headline"
	page, err := os.ReadFile("../../../docs/isolation.md")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(kept + ".json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	want, err := marks.Place(string(page), "headline", "```\n"+r.Short()+"```\n")
	if err != nil || want != string(page) {
		t.Errorf("the table of docs/isolation.md is not what its data give: go run ./test/lab/headline/run -again -page docs/isolation.md -out docs/evidence/headline (%v)", err)
	}
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(kept + ".txt"); err != nil || string(text) != b.String() {
		t.Errorf("%s.txt is not what its data give (%v)", kept, err)
	}
}
