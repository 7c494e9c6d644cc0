package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// fakeJob answers at once, with some noise.
type fakeJob struct {
	value  float64
	took   time.Duration
	noise  float64
	r      *rand.Rand
	broken func(a bed.Arm, trial int) error
	trials *int
}

func (f fakeJob) Measure(ctx context.Context, a bed.Arm, _, _ time.Duration) (map[string]float64, error) {
	*f.trials++
	if f.broken != nil {
		if err := f.broken(a, *f.trials); err != nil {
			return nil, err
		}
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(f.took):
	}
	v := f.value
	if a.Name == result.Node {
		v *= .7
	}
	return map[string]float64{"iops": v * math.Exp(f.noise*f.r.NormFloat64())}, nil
}

// fakeExperiment has rows that need no disk.
func fakeExperiment(name string, rows int, job fakeJob) bed.Definition {
	job.trials, job.r = new(int), rand.New(rand.NewPCG(1, 1))
	return bed.Definition{
		About: result.About{Name: name, Title: "Fake " + name, Measures: []result.Measure{{Name: "iops", Unit: "1/s", Compared: true}}},
		Run:   time.Millisecond, Least: time.Millisecond, Pilot: bed.PilotRounds,
		Cells: func(*bed.Options) int { return 3 * rows },
		Make: func(_ context.Context, b *bed.Bed, _ *bed.Definition, _ *bed.Options, _ bed.Lab) error {
			b.Arms = []bed.Arm{{Arm: result.Arm{Name: result.Host, Title: "host"}}, {Arm: result.Arm{Name: result.Node, Title: "node"}}}
			b.WithNull()
			for i := range rows {
				b.Rows = append(b.Rows, bed.Row{Row: result.Row{Name: fmt.Sprint("row ", i)}, Job: job})
			}
			return nil
		},
	}
}

// fakeStudy runs definitions of the test's own; it resumes where the journal exists.
func fakeStudy(ctx context.Context, o bed.Options, path string, defs ...bed.Definition) (*result.Study, error) {
	if err := o.Complete(); err != nil {
		return nil, err
	}
	var run study
	if _, err := os.Stat(path); err == nil {
		j, err := openJournal(path)
		if err != nil {
			return nil, err
		}
		defer j.f.Close()
		o, s, ended := j.study()
		run = study{Study: s, o: o, j: j, defs: defs, ended: ended}
	} else {
		s := result.Study{Format: result.Format, Seed: o.Seed, MarginPct: o.MarginPct}
		j, err := newJournal(path, startRecord{Format: JournalFormat, Options: o, Study: s})
		if err != nil {
			return nil, err
		}
		defer j.f.Close()
		run = study{Study: &s, o: o, j: j, defs: defs}
	}
	return run.finish(run.sessions(ctx))
}

func TestStudy(t *testing.T) {
	t.Parallel()
	o := bed.Options{Names: []string{"all"}, Seed: 3, Budget: 20 * time.Second}
	s, err := fakeStudy(t.Context(), o, filepath.Join(t.TempDir(), "j"),
		fakeExperiment("quiet", 3, fakeJob{value: 1000, noise: .02}), fakeExperiment("noisy", 2, fakeJob{value: 50, noise: .4}))
	if err != nil {
		t.Fatal(err)
	}
	quiet, noisy := s.Experiment("quiet"), s.Experiment("noisy")
	if d := quiet.Design; d.Pairs != d.WantedPairs || d.Pairs < stat.MinPairs || d.Short || d.PilotPairs != bed.PilotRounds || d.CouldPct > s.MarginPct {
		t.Errorf("a quiet one is designed as %+v", d)
	}
	if d := noisy.Design; d.Pairs >= d.WantedPairs || !d.Short || d.CouldPct <= s.MarginPct || len(noisy.Notes) == 0 {
		t.Errorf("a noisy one is designed as %+v, notes %q", d, noisy.Notes)
	}
	for _, r := range quiet.Rows {
		for _, c := range r.Compared {
			want := stat.Equivalent
			if c.Arm == result.Node {
				want = stat.Worse
			}
			if c.Penalty.Verdict != want || c.Penalty.Pairs != quiet.Design.Pairs {
				t.Errorf("%s, %s: %+v", r.Name, c.Arm, c.Penalty)
			}
		}
	}
	checkBlocks(t, quiet, 1)
}

// checkBlocks: each trial was made exactly once, neighbours being a block, and the arms came in all orders.
func checkBlocks(t *testing.T, e *result.Experiment, sessions int) {
	t.Helper()
	seen, orders := map[string]int{}, map[string]int{}
	for b := range slices.Chunk(e.Trials, 3) {
		arms := []string{b[0].Arm, b[1].Arm, b[2].Arm}
		orders[strings.Join(arms, " ")]++
		for _, tr := range b {
			seen[fmt.Sprint(tr.Session, tr.Row, tr.Round, tr.Arm)]++
			if tr.Row != b[0].Row || tr.Round != b[0].Round || tr.Session != b[0].Session {
				t.Fatalf("not a block: %+v", b)
			}
		}
	}
	for at, n := range seen {
		if n != 1 {
			t.Errorf("%s was measured %d times", at, n)
		}
	}
	least := sessions * e.Design.Pairs * 3 * len(e.Rows)
	counted := 0
	for _, tr := range e.Trials {
		count(&counted, tr.Round > 0)
	}
	if counted != least || len(orders) != 6 {
		t.Errorf("%d trials count, want %d; %d of 6 orders", counted, least, len(orders))
	}
}

func TestSessions(t *testing.T) {
	o := bed.Options{Names: []string{"all"}, Seed: 3, Budget: 20 * time.Second, Sessions: 3}
	s, err := fakeStudy(t.Context(), o, filepath.Join(t.TempDir(), "j"), fakeExperiment("quiet", 2, fakeJob{value: 1000, noise: .02}))
	if err != nil {
		t.Fatal(err)
	}
	e := s.Experiment("quiet")
	checkBlocks(t, e, 3)
	if len(s.Sessions) != 3 || len(e.Rows[0].Compared[0].Sessions) != 3 || e.Rows[0].Compared[0].Penalty.Pairs != 3*e.Design.Pairs {
		t.Errorf("sessions %+v, compared %+v", s.Sessions, e.Rows[0].Compared[0])
	}
}

// TestStudyBreaks checks that an error ends its experiment with the reason, and not the experiments after it.
func TestStudyBreaks(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for _, c := range []struct {
		name    string
		broken  func(bed.Arm, int) error
		partial bool
		rows    int
	}{
		{"in the warm-up", func(bed.Arm, int) error { return boom }, true, 0},
		{"now and then", func(_ bed.Arm, n int) error {
			if n > 60 && n%7 == 0 {
				return boom
			}
			return nil
		}, false, 2},
		{"for good", func(_ bed.Arm, n int) error {
			if n > 60 {
				return boom
			}
			return nil
		}, true, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := bed.Options{Names: []string{"all"}, Budget: time.Minute, Pairs: 20}
			s, err := fakeStudy(t.Context(), o, filepath.Join(t.TempDir(), "j"),
				fakeExperiment("first", 2, fakeJob{value: 1000, noise: .02, broken: c.broken}), fakeExperiment("second", 2, fakeJob{value: 1000, noise: .02}))
			if errors.Is(err, boom) != c.partial || s.Partial != c.partial {
				t.Errorf("partial %v, %v", s.Partial, err)
			}
			if n := len(s.Experiment("first").Rows); n != c.rows {
				t.Errorf("%d rows of what broke", n)
			}
			if n := len(s.Experiment("second").Rows); n != 2 {
				t.Errorf("%d rows of what did not", n)
			}
		})
	}
}

// TestStudySkips checks that an experiment which this host cannot measure is left out with the reason, and refused if it is
// asked for alone.
func TestStudySkips(t *testing.T) {
	lacks := fakeExperiment("lacks", 1, fakeJob{})
	lacks.Make = func(context.Context, *bed.Bed, *bed.Definition, *bed.Options, bed.Lab) error {
		return refuse.Cannotf("apt-get install it", "it is not installed")
	}
	o := bed.Options{Names: []string{"all"}, Budget: 20 * time.Second, Pairs: 6}
	s, err := fakeStudy(t.Context(), o, filepath.Join(t.TempDir(), "j"), lacks, fakeExperiment("has", 1, fakeJob{value: 1}))
	if err != nil || !strings.Contains(s.Experiment("lacks").Skipped, "not installed") || len(s.Experiment("has").Rows) != 1 {
		t.Errorf("%v, %+v", err, s)
	}
	if _, err := fakeStudy(t.Context(), o, filepath.Join(t.TempDir(), "j"), lacks); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("alone: %v", err)
	}
	o.Budget = time.Second
	o.Pairs = 0
	if _, err := fakeStudy(t.Context(), o, filepath.Join(t.TempDir(), "j"), fakeExperiment("long", 100, fakeJob{value: 1})); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("too little time: %v", err)
	}
}

// A run that is killed again and again, at any moment, ends with the trials of one that never was: none twice, none
// missing, in the same order.
func TestKilledStudyResumes(t *testing.T) {
	t.Parallel()
	o := bed.Options{Names: []string{"all"}, Seed: 5, Budget: time.Minute, Pairs: 12, Sessions: 2}
	defs := []bed.Definition{
		// Without noise: where it shows a carry-over by chance, in one run of twenty, all is measured again in batches.
		fakeExperiment("first", 3, fakeJob{value: 1000, took: 2 * time.Millisecond}),
		fakeExperiment("second", 2, fakeJob{value: 7, took: 2 * time.Millisecond}),
	}
	if path := os.Getenv("BENCH_TEST_JOURNAL"); path != "" {
		s, err := fakeStudy(t.Context(), o, path, defs...)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(path + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.JSON(f), f.Close()); err != nil {
			t.Fatal(err)
		}
		return
	}
	path := filepath.Join(t.TempDir(), "journal")
	kills := 0
	for leg(t, path, int64(500+rand.IntN(12000))) { // bytes: some trials, or fewer than one
		kills++
		tear(t, path)
	}
	t.Logf("%d kills", kills)
	text, err := os.ReadFile(path + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var got result.Study
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want, err := fakeStudy(t.Context(), o, filepath.Join(t.TempDir(), "j"), defs...)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		checkBlocks(t, got.Experiment(name), 2)
		if d := cmp.Diff(sequence(want.Experiment(name)), sequence(got.Experiment(name))); d != "" {
			t.Error(d)
		}
	}
}

// leg runs the test's run until its journal has grown by so much, and kills it then. It says whether it killed it.
func leg(t *testing.T, path string, grown int64) bool {
	t.Helper()
	size := func() int64 {
		fi, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return fi.Size()
	}
	run := testkit.Again(t, "TestKilledStudyResumes", "BENCH_TEST_JOURNAL="+path)
	before := size()
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("a leg failed by itself: %v", err)
			}
			return false
		case <-time.After(time.Millisecond):
		}
		if size() > before+grown {
			_ = run.Process.Kill()
			return <-ended != nil // it may have ended by itself meanwhile
		}
	}
}

func sequence(e *result.Experiment) []string {
	var all []string
	for _, tr := range e.Trials {
		all = append(all, fmt.Sprint(tr.Session, " ", tr.Round, " ", tr.Row, " ", tr.Arm))
	}
	return all
}

// tear adds half a line now and then, as a machine that lost its power would leave it.
func tear(t *testing.T, path string) {
	t.Helper()
	if rand.IntN(2) == 0 {
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return // killed before it was made
	}
	if fi, err := f.Stat(); err == nil && fi.Size() > 0 {
		_, _ = f.WriteString(`{"trial":{"experiment":"first","seq":12,"row`)
	}
	_ = f.Close()
}

func TestJournalRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text string
		kind refuse.Kind
	}{
		"empty":   {"", refuse.Invalid},
		"foreign": {"{}\n", refuse.Invalid},
		"newer":   {`{"start":{"format":"berth-bench-journal/9"}}` + "\n", refuse.Invalid},
		"damaged": {`{"start":{"format":"berth-bench-journal/1"}}` + "\n{\"trial\":\n{}\n", refuse.Invalid},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openJournal(path); refuse.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := newJournal(path, startRecord{}); refuse.KindOf(err) != refuse.Busy {
			t.Errorf("%s is overwritten: %v", name, err)
		}
	}
	if _, err := openJournal(filepath.Join(dir, "none")); refuse.KindOf(err) != refuse.NotFound {
		t.Error(err)
	}
	j, err := newJournal(filepath.Join(dir, "new"), startRecord{Format: JournalFormat})
	if err != nil {
		t.Fatal(err)
	}
	defer j.f.Close()
	if _, err := openJournal(filepath.Join(dir, "new")); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("two at work on one journal: %v", err)
	}
}
