package result

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/bench/stat"
)

// repeated is a study of several sessions, each of which is as a whole faster or slower by chance.
func repeated(seed uint64, sessions int, between, faster float64) *Study {
	r := rand.New(rand.NewPCG(seed, 0))
	s := &Study{Format: Format, MarginPct: 5, Machine: Machine{Kernel: "6.1", Cores: 2}}
	e := Experiment{
		About: About{Name: "x", Title: "X", Measures: []Measure{{Name: "iops", Unit: "1/s", Compared: true}}},
		Arms:  []Arm{{Name: Host}, {Name: Null}, {Name: Node}}, Rows: []Row{{Name: "r"}},
	}
	for n := 1; n <= sessions; n++ {
		s.Sessions = append(s.Sessions, Session{Number: n})
		level := 1000 * faster * math.Exp(between*r.NormFloat64())
		for round := 1; round <= 8; round++ {
			for _, a := range e.Arms {
				v := level * math.Exp(.02*r.NormFloat64())
				e.Trials = append(e.Trials, Trial{Head: Head{Row: "r", Round: round, Arm: a.Name}, Session: n, Values: map[string]float64{"iops": v}})
			}
		}
	}
	s.Experiments = []Experiment{e}
	s.Judge()
	return s
}

func TestCompareSessions(t *testing.T) {
	for _, c := range []struct {
		name             string
		sessions         int
		between, faster  float64
		level, ofPenalty stat.Verdict
	}{
		{"one session", 1, .001, .8, stat.Undecided, stat.Undecided},
		{"a real difference", 6, .01, .8, stat.Worse, stat.Equivalent},
		{"faster", 6, .01, 1.2, stat.Better, stat.Equivalent},
		{"the same", 6, .01, 1, stat.Equivalent, stat.Equivalent},
		{"sessions differ more", 4, .3, .95, stat.Undecided, stat.Equivalent},
	} {
		x := Compare(repeated(1, c.sessions, c.between, 1), repeated(2, c.sessions, c.between, c.faster), "a.json", "b.json")
		if rows := x.Experiments[0].Rows; len(rows) != 2 || len(rows[0].Compared) != 1 || len(rows[1].Compared) != 2 {
			t.Fatalf("%s: %+v", c.name, rows)
		}
		for _, r := range x.Experiments[0].Rows {
			for _, got := range r.Compared {
				want := c.level
				if strings.HasSuffix(got.Measure, lost) {
					want = c.ofPenalty
				}
				if got.Penalty.Verdict != want {
					t.Errorf("%s: %s %+v, want %s", c.name, r.Name, got.Penalty, want)
				}
				if (got.Penalty.CI95Pct == nil) != (c.sessions == 1) {
					t.Errorf("%s: an interval without a spread, or none with one: %+v", c.name, got.Penalty)
				}
			}
		}
		if (c.sessions == 1) != strings.Contains(strings.Join(x.Notes, " "), "--sessions") {
			t.Errorf("%s: %q", c.name, x.Notes)
		}
	}
}

// False alarms between equal sides are at most what the level says, whatever the sessions' own spread.
func TestCompareFalseAlarms(t *testing.T) {
	called, n := 0, 400
	for i := range n {
		x := Compare(repeated(uint64(2*i), 4, .1, 1), repeated(uint64(2*i+1), 4, .1, 1), "a", "b")
		if v := x.Experiments[0].Rows[0].Compared[0].Penalty.Verdict; v == stat.Worse || v == stat.Better {
			called++
		}
	}
	if called > 34 { // 20 expected; more has a probability of 1 in 1000
		t.Errorf("%d of %d equal studies were called different", called, n)
	}
}

func TestCompareSaysWhatDiffers(t *testing.T) {
	a, b := sample(t), sample(t)
	b.Machine.Kernel, b.Experiments[0].Targets[0].Scheduler, b.Tools[0].Version = "7.0", "bfq", "fio-3.40"
	b.Experiments = b.Experiments[:2]
	b.Started = b.Started.Add(time.Hour)
	got := strings.Join(Compare(a, b, "a", "b").Notes, "; ")
	for _, want := range []string{"kernel: 6.18.5 / 7.0", "scheduler of fio-d: none / bfq", "fio: fio-3.33 / fio-3.40", "start is in the first only"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
}

// Rows of an arm whose CPU is emulated in one of the runs say so, and arms that only one run has are named.
func TestCompareOfMachines(t *testing.T) {
	with := func(emulated string) *Study {
		s := repeated(1, 2, .01, 1)
		e := &s.Experiments[0]
		e.Arms = append(e.Arms, Arm{Name: VirtualMachine, Emulated: emulated})
		for _, tr := range e.Trials {
			if tr.Arm == Node {
				tr.Arm = VirtualMachine
				e.Trials = append(e.Trials, tr)
			}
		}
		s.Judge()
		return s
	}
	for _, c := range []struct {
		name    string
		a, b    *Study
		flagged bool
	}{
		{"the first", with("QEMU"), with(""), true},
		{"the second", with(""), with("QEMU"), true},
		{"none", with(""), with(""), false},
	} {
		x := Compare(c.a, c.b, "a", "b")
		rows := map[string]bool{}
		for _, r := range x.Experiments[0].Rows {
			rows[r.Name] = slices.Contains(r.Flags, EmulatedCPU)
		}
		if want := map[string]bool{"r host": false, "r node": false, "r machine": c.flagged}; !maps.Equal(rows, want) {
			t.Errorf("%s: %v, want %v", c.name, rows, want)
		}
	}
	without := repeated(1, 2, .01, 1)
	for want, x := range map[string]*Study{
		"arm machine of x is in the second only": Compare(without, with(""), "a", "b"), "arm machine of x is in the first only": Compare(with(""), without, "a", "b"),
	} {
		if !slices.Contains(x.Notes, want) {
			t.Errorf("%q is not in %q", want, x.Notes)
		}
	}
}
