package bench

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Tails of the Mann–Whitney statistic: Hollander, Wolfe and Chicken, table A.6 (of U = W − n(n+1)/2), and counted by hand.
func TestMannWhitney(t *testing.T) {
	for _, c := range []struct {
		m, n, u int
		want    float64
	}{{1, 1, 1, .5}, {2, 2, 4, 1. / 6}, {3, 3, 9, 1. / 20}, {3, 5, 13, 4. / 56}, {5, 5, 21, 12. / 252}, {4, 0, 0, 1}} {
		p, got := mannWhitney(c.m, c.n), 0.0
		for _, v := range p[c.u:] {
			got += v
		}
		if len(p) != c.m*c.n+1 || math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%d and %d: P(U ≥ %d) = %v, want %v", c.m, c.n, c.u, got, c.want)
		}
	}
}

// One stratum of 3 and 5, all of the first above: 2/56. Two strata of 2 and 2, all above: 2/36. Equal values count for neither.
func TestRankSums(t *testing.T) {
	for _, c := range []struct {
		strata   [][2][]float64
		p, shift float64
	}{
		{[][2][]float64{{{11, 12, 13}, {1, 2, 3, 4, 5}}}, 2. / 56, 9},
		{[][2][]float64{{{11, 12}, {1, 2}}, {{111, 112}, {101, 102}}}, 2. / 36, 10},
		{[][2][]float64{{{1, 2}, {1, 2}}}, 1, 0},
		{nil, 1, 0},
	} {
		p, shift := rankSums(c.strata)
		if math.Abs(p-c.p) > 1e-12 || shift != c.shift {
			t.Errorf("%v: p %v, shift %v", c.strata, p, shift)
		}
	}
	r := rand.New(rand.NewPCG(1, 1)) // normal where it was exact: the two agree
	a, b := make([]float64, 70), make([]float64, 57)
	for i := range a {
		a[i] = r.NormFloat64() + .3
	}
	for i := range b {
		b[i] = r.NormFloat64()
	}
	exact, _ := rankSums([][2][]float64{{a, b}})
	normal, _ := rankSums([][2][]float64{{a, slices.Concat(b, b)}})
	if len(a)*len(b) > exactPairs || math.IsNaN(normal) || exact < .001 || exact > .5 {
		t.Errorf("exact %v, normal of twice the sample %v", exact, normal)
	}
}

// turns makes trials in random order; after says what ran before a trial does to it.
func turns(r *rand.Rand, rows, arms []string, rounds int, noise func() float64, after func(arm, before string) float64) []observed {
	var all []observed
	before := &Head{}
	for round := 1; round <= rounds; round++ {
		for _, row := range r.Perm(len(rows)) {
			for _, arm := range r.Perm(len(arms)) {
				h := Head{Seq: len(all) + 1, Row: rows[row], Round: round, Arm: arms[arm]}
				if before.Arm != "" {
					h.follows(before)
				}
				v := noise() + float64(row) // rows differ
				if before.Arm != "" {
					v += after(h.Arm, before.Arm)
				}
				all = append(all, observed{Head: h, value: math.Exp(v)})
				before = &all[len(all)-1].Head
			}
		}
	}
	return all
}

// Where nothing is carried over, the test says so in at least 95 of 100 experiments, whatever the noise and however different the arms; where
// something is, it is found.
func TestCarryOver(t *testing.T) {
	const runs = 300
	r := rand.New(rand.NewPCG(10, 1))
	drift := 0.0
	type noise struct {
		name string
		next func() float64
	}
	noises := []noise{
		{"normal", func() float64 { return .05 * r.NormFloat64() }},
		{"drifts", func() float64 { drift = .9*drift + .05*r.NormFloat64(); return drift }},
		{"stalls", func() float64 { return .02*r.NormFloat64() - math.Floor(1.1*r.Float64()) }},
		{"heavy tails", func() float64 { return .05 * r.NormFloat64() / math.Sqrt(r.ExpFloat64()) }},
	}
	slower := func(arm, _ string) float64 { // what is right: berth is slower, and nothing is carried over
		return map[bool]float64{true: -.3}[arm == nodeArm]
	}
	carries := func(arm, before string) float64 { // the host is a fifth slower after a node
		return slower(arm, before) + map[bool]float64{true: -.2}[arm != nodeArm && before == nodeArm]
	}
	for _, rows := range [][]string{{"a"}, {"a", "b", "c", "d"}} {
		for _, n := range noises {
			name, noise := n.name, n.next
			false1, found := 0, 0
			for range runs {
				for _, c := range carryOver(hostArm, turns(r, rows, []string{hostArm, nodeArm, nullArm}, 20, noise, slower), false) {
					if c.shown() {
						false1++
						break
					}
				}
				for _, c := range carryOver(hostArm, turns(r, rows, []string{hostArm, nodeArm, nullArm}, 20, noise, carries), false) {
					count(&found, c.shown() && c.Arm == hostArm && c.WorsePct > 0)
				}
			}
			t.Logf("%d rows, %s: shown in %.1f %% of experiments without, in %.1f %% with a fifth", len(rows), name, 100*float64(false1)/runs, 100*float64(found)/runs)
			if 100*false1 > 10*runs {
				t.Errorf("%d rows, %s: carry-over is shown in %d of %d experiments that have none", len(rows), name, false1, runs)
			}
			if 100*found < 75*runs {
				t.Errorf("%d rows, %s: found in %d of %d", len(rows), name, found, runs)
			}
		}
	}
}

// hangover is a job whose trials are slower after another arm, for so many trials.
type hangover struct {
	r      *rand.Rand
	last   *string
	behind *int // trials of the same kind since
	long   int
}

func (h hangover) measure(_ context.Context, a bedArm, _, _ time.Duration) (map[string]float64, error) {
	kind := a.Name
	if kind == nullArm {
		kind = hostArm
	}
	if kind != *h.last {
		*h.last, *h.behind = kind, 0
	}
	v := 1000 * math.Exp(.02*h.r.NormFloat64())
	if *h.behind < h.long && kind == hostArm {
		v *= .7
	}
	*h.behind++
	return map[string]float64{"iops": v}, nil
}

// An experiment in which the host suffers from the node before it is measured again in batches, and then says what is so: that the two do
// not differ. In turn it would have called the node better. One whose batches are too short for it says that.
func TestBatchesWhereItCarriesOver(t *testing.T) {
	for _, c := range []struct {
		name string
		long int
		want Verdict
		left bool
	}{{"nothing", 0, Equivalent, false}, {"one trial", 1, Equivalent, false}, {"three trials, in batches from the first", 3, Better, true}} {
		t.Run(c.name, func(t *testing.T) {
			d := fakeExperiment("x", 1, fakeJob{})
			job := hangover{rand.New(rand.NewPCG(3, 1)), new(string), new(int), c.long}
			if c.left {
				d.batch = &Batch{Trials: 4, Dropped: 1, Why: "it is known"}
			}
			made := d.make
			d.make = func(ctx context.Context, d *definition, o *StudyOptions, l Lab) (*bed, error) {
				b, err := made(ctx, d, o, l)
				b.rows[0].job = job
				return b, err
			}
			path := filepath.Join(t.TempDir(), "j")
			o := StudyOptions{Names: []string{"x"}, Seed: 5, Budget: 20 * time.Second, Pairs: 30, Sessions: 2}
			s, err := fakeStudy(t.Context(), o, path, d)
			if err != nil {
				t.Fatal(err)
			}
			e := s.experiment("x")
			b := e.Design.Batch
			if (b != nil) != (c.long > 0) {
				t.Fatalf("batches: %+v; carry-over: %+v", b, e.Carry)
			}
			for _, r := range e.Rows[0].Compared {
				if r.Arm == nodeArm && r.Penalty.Verdict != c.want {
					t.Errorf("called %s: %+v", r.Penalty.Verdict, r.Penalty)
				}
				want := 60
				if b != nil && !c.left {
					want = 2 * b.Rounds
				}
				if r.Penalty.Pairs != want {
					t.Errorf("%d pairs, want %d", r.Penalty.Pairs, want)
				}
			}
			if b != nil && slices.ContainsFunc(e.Carry, CarryOver.shown) != c.left {
				t.Errorf("in the batches: %+v", e.Carry)
			}
			for _, tr := range e.Trials {
				if tr.Session == 2 && tr.Round > 0 && (tr.Batch > 0) != (b != nil) {
					t.Fatalf("the second session's trial %+v", tr.Head)
				}
			}
			again, err := fakeStudy(t.Context(), o, path, d) // resumed when all is done: nothing is measured again
			if err != nil || len(again.experiment("x").Trials) != len(e.Trials) {
				t.Errorf("resumed: %v, %d trials, had %d", err, len(again.experiment("x").Trials), len(e.Trials))
			}
		})
	}
}

// Interrupted before the first batch, a run shows what it measured in turn, and that it carries over.
func TestInterruptedBeforeBatches(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	e := Experiment{
		About: About{Name: "x", Measures: []Measure{{Name: "iops", Unit: "1/s", Compared: true}}}, Arms: []ArmInfo{{Name: hostArm}, {Name: nodeArm}, {Name: nullArm}},
		Rows: []StudyRow{{Name: "a"}}, Design: Design{Pairs: 20, Batch: &Batch{Trials: 4, Dropped: 1, Rounds: 6}},
	}
	for _, o := range turns(r, []string{"a"}, []string{hostArm, nodeArm, nullArm}, 20, func() float64 { return .02 * r.NormFloat64() }, func(arm, before string) float64 {
		return map[bool]float64{true: -.3}[arm != nodeArm && before == nodeArm]
	}) {
		e.Trials = append(e.Trials, StudyTrial{Head: o.Head, Session: 1, Values: map[string]float64{"iops": o.value}})
	}
	s := Study{MarginPct: 5, Experiments: []Experiment{e}}
	s.Judge()
	if got := s.Experiments[0]; len(got.Rows) != 1 || got.Rows[0].Compared[0].Penalty.Pairs != 20 || got.Design.Batch != nil || !slices.ContainsFunc(got.Carry, CarryOver.shown) {
		t.Errorf("%d rows, batches %+v, carry-over %+v", len(got.Rows), got.Design.Batch, got.Carry)
	}
}

// A document that does not tell what ran before a trial is read by its order.
func TestInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	told := turns(r, []string{"a", "b"}, []string{hostArm, nodeArm, nullArm}, 4, r.NormFloat64, func(string, string) float64 { return 0 })
	silent := slices.Clone(told)
	for i := range silent {
		silent[i].After, silent[i].AfterRow = "", ""
	}
	slices.Reverse(silent)
	if d := cmp.Diff(told, inOrder(silent), cmp.AllowUnexported(observed{})); d != "" {
		t.Error(d)
	}
}
