package bench

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// Values of the tables in any textbook.
func TestStudentQuantile(t *testing.T) {
	for _, c := range []struct{ p, freedom, want float64 }{
		{.975, 1, 12.7062}, {.95, 2, 2.91999}, {.975, 4, 2.77645}, {.975, 10, 2.22814}, {.95, 30, 1.69726}, {.975, 1e6, 1.95997},
	} {
		if got := studentQuantile(c.p, c.freedom); math.Abs(got-c.want) > 2e-4*c.want {
			t.Errorf("%v with %v: %v, want %v", c.p, c.freedom, got, c.want)
		}
	}
}

// repeated is a study of several sessions, each of which is as a whole faster or slower by chance.
func repeated(seed uint64, sessions int, between, faster float64) *Study {
	r := rand.New(rand.NewPCG(seed, 0))
	s := &Study{Format: StudyFormat, MarginPct: 5, Machine: Machine{Kernel: "6.1", Cores: 2}}
	e := Experiment{
		About: About{Name: "x", Title: "X", Measures: []Measure{{Name: "iops", Unit: "1/s", Compared: true}}},
		Arms:  []ArmInfo{{Name: hostArm}, {Name: nullArm}, {Name: nodeArm}}, Rows: []StudyRow{{Name: "r"}},
	}
	for n := 1; n <= sessions; n++ {
		s.Sessions = append(s.Sessions, Session{Number: n})
		level := 1000 * faster * math.Exp(between*r.NormFloat64())
		for round := 1; round <= 8; round++ {
			for _, a := range e.Arms {
				v := level * math.Exp(.02*r.NormFloat64())
				e.Trials = append(e.Trials, StudyTrial{Head: Head{Row: "r", Round: round, Arm: a.Name}, Session: n, Values: map[string]float64{"iops": v}})
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
		level, ofPenalty Verdict
	}{
		{"one session", 1, .001, .8, Undecided, Undecided},
		{"a real difference", 6, .01, .8, Worse, Equivalent},
		{"faster", 6, .01, 1.2, Better, Equivalent},
		{"the same", 6, .01, 1, Equivalent, Equivalent},
		{"sessions differ more", 4, .3, .95, Undecided, Equivalent},
	} {
		x := Compare(repeated(1, c.sessions, c.between, 1), repeated(2, c.sessions, c.between, c.faster), "a.json", "b.json")
		for _, r := range x.Experiments[0].Rows {
			want := c.level
			if r.Unit == "%" {
				want = c.ofPenalty
			}
			if r.Verdict != want {
				t.Errorf("%s: %+v, want %s", c.name, r, want)
			}
			if (r.CI95Pct == nil) != (c.sessions == 1) {
				t.Errorf("%s: an interval without a spread, or none with one: %+v", c.name, r)
			}
		}
		var b bytes.Buffer
		if err := x.Text(&b); err != nil || (c.sessions == 1) != strings.Contains(b.String(), "--sessions") {
			t.Errorf("%s: %v\n%s", c.name, err, b.String())
		}
		for line := range strings.Lines(b.String()) {
			if len([]rune(line)) > 81 {
				t.Errorf("a wide line: %s", line)
			}
		}
	}
}

// False alarms between equal sides are at most what the level says, whatever the sessions' own spread.
func TestCompareFalseAlarms(t *testing.T) {
	called, n := 0, 400
	for i := range n {
		x := Compare(repeated(uint64(2*i), 4, .1, 1), repeated(uint64(2*i+1), 4, .1, 1), "a", "b")
		if v := x.Experiments[0].Rows[0].Verdict; v == Worse || v == Better {
			called++
		}
	}
	if called > 34 { // 20 expected; more has a probability of 1 in 1000
		t.Errorf("%d of %d equal studies were called different", called, n)
	}
}

func TestCompareSaysWhatDiffers(t *testing.T) {
	a, b := sampleStudy(t), sampleStudy(t)
	b.Machine.Kernel, b.Experiments[0].Targets[0].Scheduler, b.Tools[0].Version = "7.0", "bfq", "fio-3.40"
	b.Experiments = b.Experiments[:2]
	b.Started = b.Started.Add(time.Hour)
	got := strings.Join(Compare(a, b, "a", "b").Differ, "; ")
	for _, want := range []string{"kernel: 6.18.5 / 7.0", "scheduler of fio-d: none / bfq", "fio: fio-3.33 / fio-3.40", "start is in the first only"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
}
