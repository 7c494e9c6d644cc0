package bench

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// The emulator is no child of this process: what a trial in a machine uses of the CPUs is not called others'.
func TestConditionsOfMachines(t *testing.T) {
	pct := 50.0
	for arm, known := range map[string]bool{result.Host: true, result.Node: true, result.VirtualMachine: false} {
		c := conditionsOf(bed.Arm{Arm: result.Arm{Name: arm}}, result.Conditions{StealPct: &pct, OtherPct: &pct})
		if c.StealPct == nil || (c.OtherPct != nil) != known {
			t.Errorf("%s: %+v", arm, c)
		}
	}
}

// A run that is gone on with is refused where it can no longer have its machine, before anything is measured; one that has only other
// experiments left needs none.
func TestResumeWithMachines(t *testing.T) {
	where, err := side.Computer()
	testkit.Must(t, err)
	refused := errors.New("no emulator")
	lab := bed.Lab{
		Can: func(context.Context, *vnode.Node) error {
			return refuse.Cannotf("install one", "no machine: %w", refused)
		},
		Node: func(context.Context, *vnode.Node) (side.Arm, func(), error) {
			t.Error("a node is made")
			return nil, nil, refused
		},
	}
	for _, c := range []struct {
		name    string
		ended   bool
		refused bool
	}{{"left", false, true}, {"has ended", true, false}} {
		t.Run(c.name, func(t *testing.T) {
			o := bed.Options{Names: []string{"cpu"}, Machine: &side.Guest{Image: "/a.erofs", Machine: vnode.Machine{Kernel: "/k"}}}
			testkit.Must(t, o.Complete())
			path := filepath.Join(t.TempDir(), "journal")
			j, err := newJournal(path, startRecord{Format: JournalFormat, Options: o, Study: result.Study{Format: result.Format, Machine: where}})
			testkit.Must(t, err)
			if c.ended {
				testkit.Must(t, j.add(record{End: &endRecord{Session: 1, Experiment: "cpu"}}))
			}
			testkit.Must(t, j.f.Close())
			_, err = Resume(t.Context(), lab, path, nil)
			if errors.Is(err, refused) != c.refused || c.refused && refuse.KindOf(err) != refuse.Cannot {
				t.Errorf("%v", err)
			}
		})
	}
}

// What a machine's clock showed at the end is noted beside what was known before, and the trials stay.
func TestClocksAreNoted(t *testing.T) {
	then := time.Now().Add(-10000 * time.Second)
	d := fakeExperiment("x", 1, fakeJob{value: 1000, noise: .01})
	made := d.Make
	d.Make = func(ctx context.Context, b *bed.Bed, d *bed.Definition, o *bed.Options, l bed.Lab) error {
		err := made(ctx, b, d, o, l)
		b.Notes = append(b.Notes, "known before")
		b.Arms = append(b.Arms, bed.Arm{
			Arm: result.Arm{Name: result.VirtualMachine}, Clock: &side.ClockReading{Guest: 10, From: then, To: then},
			Run: func(context.Context, []string) ([]byte, error) { return []byte("20000.00 0.00\n"), nil },
		})
		return err
	}
	path := filepath.Join(t.TempDir(), "j")
	for _, how := range []string{"measured", "read again"} {
		s, err := fakeStudy(t.Context(), bed.Options{Names: []string{"x"}, Seed: 5, Pairs: 6, Budget: 20 * time.Second}, path, d)
		testkit.Must(t, err)
		e := s.Experiment("x")
		if notes := strings.Join(e.Notes, "; "); strings.Count(notes, "CLOCK: that of machine") != 1 || !strings.Contains(notes, "known before") || len(e.Trials) != 7*4 {
			t.Errorf("%s: %d trials, notes %q", how, len(e.Trials), notes)
		}
	}
}
