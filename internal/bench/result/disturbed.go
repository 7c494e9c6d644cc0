package result

import "berth/internal/bench/stat"

// The rule by which a trial is flagged, fixed in advance (docs/METHOD.md). It looks at what went on beside the trial, not
// at its result, and a flagged trial counts like any other: to leave some out would be a choice made after seeing them.
const (
	stealLimit = 2.0  // percent of all CPUs' time that the hypervisor took
	otherLimit = 10.0 // percent of all CPUs' time that others used, above the median of the arm's trials in the row
	slowLimit  = 0.9  // of the median clock of the experiment
)

// disturb flags the trials of an experiment.
func (e *Experiment) disturb() {
	type place struct{ row, arm string }
	others, clocks := map[place][]float64{}, []float64{}
	for _, t := range e.Trials {
		if t.Values != nil && t.Conditions != nil {
			at := place{t.Row, t.Arm}
			if t.Conditions.OtherPct != nil {
				others[at] = append(others[at], *t.Conditions.OtherPct)
			}
			if t.Conditions.CPUMHz > 0 {
				clocks = append(clocks, t.Conditions.CPUMHz)
			}
		}
	}
	clock := stat.MedianOf(clocks)
	usual := map[place]float64{}
	for at, x := range others {
		usual[at] = stat.MedianOf(x)
	}
	for i := range e.Trials {
		t := &e.Trials[i]
		t.Disturbed = nil
		if t.Conditions == nil {
			continue
		}
		c := *t.Conditions
		for _, part := range []struct {
			name string
			hit  bool
		}{
			{"steal", c.StealPct != nil && *c.StealPct > stealLimit},
			{"throttled", c.Throttled > 0},
			{"slow-clock", c.CPUMHz > 0 && c.CPUMHz < slowLimit*clock},
			{"other-load", c.OtherPct != nil && *c.OtherPct > usual[place{t.Row, t.Arm}]+otherLimit},
		} {
			if part.hit && t.Values != nil {
				t.Disturbed = append(t.Disturbed, part.name)
			}
		}
	}
}
