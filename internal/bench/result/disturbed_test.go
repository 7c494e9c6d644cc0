package result

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The rule by which trials are flagged looks at conditions only.
func TestDisturbedRule(t *testing.T) {
	e, at := Experiment{}, func(pct float64) *float64 { return &pct }
	add := func(c Conditions) {
		e.Trials = append(e.Trials, Trial{Head: Head{Row: "r", Arm: Host, Round: len(e.Trials) + 1}, Values: map[string]float64{"x": 1}, Conditions: &c})
	}
	for range 20 {
		add(Conditions{CPUMHz: 3000, OtherPct: at(30)}) // a peer that is always there
	}
	want := [][]string{nil, {"steal"}, {"throttled"}, {"slow-clock"}, {"other-load"}, {"steal", "other-load"}}
	for _, c := range []Conditions{
		{CPUMHz: 2800, StealPct: at(1.9), OtherPct: at(39.9)},
		{StealPct: at(2.1), OtherPct: at(30)},
		{Throttled: 1, OtherPct: at(30)},
		{CPUMHz: 2600, OtherPct: at(30)},
		{OtherPct: at(41)},
		{StealPct: at(50), OtherPct: at(99)},
	} {
		add(c)
	}
	e.disturb()
	for i, tr := range e.Trials {
		var expect []string
		if i >= 20 {
			expect = want[i-20]
		}
		if d := cmp.Diff(expect, tr.Disturbed); d != "" {
			t.Errorf("%+v: %s", tr.Conditions, d)
		}
	}
}
