package result

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/bench/stat"
)

// Turns makes trials in random order; after says what ran before a trial does to it.
func turns(r *rand.Rand, rows, arms []string, rounds int, noise func() float64, after func(arm, before string) float64) []observed {
	var all []observed
	before := &Head{}
	for round := 1; round <= rounds; round++ {
		for _, row := range r.Perm(len(rows)) {
			for _, arm := range r.Perm(len(arms)) {
				h := Head{Seq: len(all) + 1, Row: rows[row], Round: round, Arm: arms[arm]}
				if before.Arm != "" {
					h.Follows(before)
				}
				v := noise() + float64(row) // rows differ
				if before.Arm != "" {
					v += after(h.Arm, before.Arm)
				}
				all = append(all, observed{Head: h, Value: math.Exp(v)})
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
		return map[bool]float64{true: -.3}[arm == Node]
	}
	carries := func(arm, before string) float64 { // the host is a fifth slower after a node
		return slower(arm, before) + map[bool]float64{true: -.2}[arm != Node && before == Node]
	}
	for _, rows := range [][]string{{"a"}, {"a", "b", "c", "d"}} {
		for _, n := range noises {
			name, noise := n.name, n.next
			false1, found := 0, 0
			for range runs {
				for _, c := range carryOver(Host, turns(r, rows, []string{Host, Node, Null}, 20, noise, slower), false) {
					if c.Shown() {
						false1++
						break
					}
				}
				for _, c := range carryOver(Host, turns(r, rows, []string{Host, Node, Null}, 20, noise, carries), false) {
					count(&found, c.Shown() && c.Arm == Host && c.WorsePct > 0)
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

// A document that does not tell what ran before a trial is read by its order.
func TestInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	told := turns(r, []string{"a", "b"}, []string{Host, Node, Null}, 4, r.NormFloat64, func(string, string) float64 { return 0 })
	silent := slices.Clone(told)
	for i := range silent {
		silent[i].After, silent[i].AfterRow = "", ""
	}
	slices.Reverse(silent)
	if d := cmp.Diff(told, inOrder(silent), cmp.AllowUnexported(observed{})); d != "" {
		t.Error(d)
	}
}

// Carry-over: the host is a tenth slower in a trial right after the node's; there is no other difference.
func TestCarriedIntoVerdicts(t *testing.T) {
	runs, r := simulations(1000), rand.New(rand.NewPCG(6, 3))
	called, seen, silent := 0, 0, 0
	for range runs {
		trials := turns(r, []string{"a"}, []string{Host, Node, Null}, 20, func() float64 { return .05 * r.NormFloat64() }, func(arm, before string) float64 {
			return map[bool]float64{true: -.1}[arm != Node && before == Node]
		})
		host, node := map[int]float64{}, map[int]float64{}
		for _, o := range trials {
			switch o.Arm {
			case Host:
				host[o.Round] = o.Value
			case Node:
				node[o.Round] = o.Value
			}
		}
		v := stat.Decide(stat.NewEstimate(stat.PairUp(host, node).Logs()), stat.LogMargin(1))
		wrong, shown := v == stat.Worse || v == stat.Better, false
		for _, c := range carryOver(Host, trials, false) {
			shown = shown || c.Shown()
		}
		count(&called, wrong)
		count(&seen, shown)
		count(&silent, wrong && !shown)
	}
	if p := 100 * called / runs; p < 30 || p > 80 {
		t.Errorf("%s: %d %%", "a tenth carried over: equal arms called different", p)
	}
	if p := 100 * seen / runs; p < 90 || p > 100 {
		t.Errorf("%s: %d %%", "  carry-over shown", p)
	}
	if p := 100 * silent / runs; p < 0 || p > 3 {
		t.Errorf("%s: %d %%", "  called different, and carry-over not shown", p)
	}
}

// simulations returns the usual number of runs, or that of the variable BERTH_RUNS: docs/METHOD.md has figures from more runs.
func simulations(usual int) int {
	if n, err := strconv.Atoi(os.Getenv("BERTH_RUNS")); err == nil && n > 0 {
		return n
	}
	return usual
}

func count(n *int, yes bool) {
	if yes {
		*n++
	}
}

// Interrupted before the first batch, a run shows what it measured in turn, and that it carries over.
func TestInterruptedBeforeBatches(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	e := Experiment{
		About: About{Name: "x", Measures: []Measure{{Name: "iops", Unit: "1/s", Compared: true}}}, Arms: []Arm{{Name: Host}, {Name: Node}, {Name: Null}},
		Rows: []Row{{Name: "a"}}, Design: Design{Pairs: 20, Batch: &Batch{Trials: 4, Dropped: 1, Rounds: 6}},
	}
	for _, o := range turns(r, []string{"a"}, []string{Host, Node, Null}, 20, func() float64 { return .02 * r.NormFloat64() }, func(arm, before string) float64 {
		return map[bool]float64{true: -.3}[arm != Node && before == Node]
	}) {
		e.Trials = append(e.Trials, Trial{Head: o.Head, Session: 1, Values: map[string]float64{"iops": o.Value}})
	}
	s := Study{MarginPct: 5, Experiments: []Experiment{e}}
	s.Judge()
	if got := s.Experiments[0]; len(got.Rows) != 1 || got.Rows[0].Compared[0].Penalty.Pairs != 20 || got.Design.Batch != nil || !slices.ContainsFunc(got.Carry, CarryOver.Shown) {
		t.Errorf("%d rows, batches %+v, carry-over %+v", len(got.Rows), got.Design.Batch, got.Carry)
	}
}
