package bench

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// hangover is a job whose trials are slower after another arm, for so many trials.
type hangover struct {
	r      *rand.Rand
	last   *string
	behind *int // trials of the same kind since
	long   int
}

func (h hangover) Measure(_ context.Context, a bed.Arm, _, _ time.Duration) (map[string]float64, error) {
	kind := a.Name
	if kind == result.Null {
		kind = result.Host
	}
	if kind != *h.last {
		*h.last, *h.behind = kind, 0
	}
	v := 1000 * math.Exp(.02*h.r.NormFloat64())
	if *h.behind < h.long && kind == result.Host {
		v *= .7
	}
	*h.behind++
	return map[string]float64{"iops": v}, nil
}

// An experiment in which the host suffers from the node before it is measured again in batches, and then says what is so: that the two do
// not differ. In turn it would have called the node better. One whose batches are too short for it says that.
func TestBatchesWhereItCarriesOver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		long int
		want stat.Verdict
		left bool
	}{{"nothing", 0, stat.Equivalent, false}, {"one trial", 1, stat.Equivalent, false}, {"three trials, in batches from the first", 3, stat.Better, true}} {
		t.Run(c.name, func(t *testing.T) {
			d := fakeExperiment("x", 1, fakeJob{})
			job := hangover{rand.New(rand.NewPCG(3, 1)), new(string), new(int), c.long}
			if c.left {
				d.Batch = &result.Batch{Trials: 4, Dropped: 1, Why: "it is known"}
			}
			made := d.Make
			d.Make = func(ctx context.Context, b *bed.Bed, d *bed.Definition, o *bed.Options, l bed.Lab) error {
				err := made(ctx, b, d, o, l)
				b.Rows[0].Job = job
				return err
			}
			path := filepath.Join(t.TempDir(), "j")
			o := bed.Options{Names: []string{"x"}, Seed: 5, Budget: 20 * time.Second, Pairs: 30, Sessions: 2}
			s, err := fakeStudy(t.Context(), o, path, d)
			if err != nil {
				t.Fatal(err)
			}
			e := s.Experiment("x")
			b := e.Design.Batch
			if (b != nil) != (c.long > 0) {
				t.Fatalf("batches: %+v; carry-over: %+v", b, e.Carry)
			}
			for _, r := range e.Rows[0].Compared {
				if r.Arm == result.Node && r.Penalty.Verdict != c.want {
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
			if b != nil && slices.ContainsFunc(e.Carry, result.CarryOver.Shown) != c.left {
				t.Errorf("in the batches: %+v", e.Carry)
			}
			for _, tr := range e.Trials {
				if tr.Session == 2 && tr.Round > 0 && (tr.Batch > 0) != (b != nil) {
					t.Fatalf("the second session's trial %+v", tr.Head)
				}
			}
			again, err := fakeStudy(t.Context(), o, path, d) // resumed when all is done: nothing is measured again
			if err != nil || len(again.Experiment("x").Trials) != len(e.Trials) {
				t.Errorf("resumed: %v, %d trials, had %d", err, len(again.Experiment("x").Trials), len(e.Trials))
			}
		})
	}
}

// An arm whose trials take long has the last trial of each batch alone, and is compared all the same.
func TestSlowArmInBatches(t *testing.T) {
	t.Parallel()
	d := fakeExperiment("x", 1, fakeJob{value: 1000, noise: .01})
	d.Batch = &result.Batch{Trials: 4, Dropped: 2, Why: "it is known"}
	made := d.Make
	d.Make = func(ctx context.Context, b *bed.Bed, d *bed.Definition, o *bed.Options, l bed.Lab) error {
		err := made(ctx, b, d, o, l)
		b.Arms = append(b.Arms, bed.Arm{Arm: result.Arm{Name: result.VirtualMachine, Emulated: "QEMU"}, Slow: true})
		return err
	}
	run := func(path string) *result.Study {
		o := bed.Options{Names: []string{"x"}, Seed: 5, Budget: 20 * time.Second, Pairs: 6}
		s, err := fakeStudy(t.Context(), o, path, d)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	path := filepath.Join(t.TempDir(), "j")
	e := run(path).Experiment("x")
	slow := 0
	for _, tr := range e.Trials {
		if tr.Arm != result.VirtualMachine {
			continue
		}
		if slow++; tr.Batch != 4 {
			t.Errorf("trial %d of a batch", tr.Batch)
		}
	}
	if slow != 7 || len(e.Trials) != 7*(3*4+1) {
		t.Errorf("%d of %d trials", slow, len(e.Trials))
	}
	compared := slices.IndexFunc(e.Rows[0].Compared, func(c result.Comparison) bool { return c.Arm == result.VirtualMachine })
	if compared < 0 || e.Rows[0].Compared[compared].Penalty.Pairs != 6 {
		t.Errorf("%+v", e.Rows[0].Compared)
	}
	if again := run(path).Experiment("x"); len(again.Trials) != len(e.Trials) {
		t.Errorf("resumed, it has %d trials, not %d", len(again.Trials), len(e.Trials))
	}
}
