package headline

import (
	"slices"

	"berth/internal/bench/result"
)

// study shows the trials in the form that berth bench report prints. The reference is the arm "alone".
func (r *Report) study() *result.Study {
	e := result.Experiment{
		About: result.About{
			Name: "headline", Title: "A storage service beside batch nodes", Question: "How much longer do its clients wait than when it is alone?",
			Setting: "in an emulated machine: compare arms, not milliseconds",
			Measures: []result.Measure{
				{Name: "p99_ms", Title: "p99 latency", Unit: "ms", LessIsBetter: true, Compared: true},
				{Name: "p50_ms", Title: "p50 latency", Unit: "ms", LessIsBetter: true, Compared: true},
			},
		},
		Rows: []result.Row{{Name: "reads"}},
	}
	arm := func(name string) {
		if !slices.ContainsFunc(e.Arms, func(a result.Arm) bool { return a.Name == name }) {
			e.Arms = append(e.Arms, result.Arm{Name: name, Title: name})
		}
	}
	arm("alone") // the reference
	for i, t := range r.Trials {
		arm(t.Arm)
		e.Design.Pairs = max(e.Design.Pairs, t.Round)
		e.Trials = append(e.Trials, result.Trial{
			Head: result.Head{Seq: i + 1, Row: "reads", Round: t.Round, Arm: t.Arm, After: t.Before}, Session: max(t.Session, 1),
			Values: map[string]float64{"p50_ms": t.P50, "p99_ms": t.P99},
		})
	}
	s := &result.Study{
		Format: result.Format, Title: "Berth: a storage service beside batch nodes", Partial: r.Partial, Emulated: "QEMU", Started: r.Started, Ended: r.Ended,
		MarginPct: 5, Experiments: []result.Experiment{e},
	}
	s.Judge()
	s.Experiments[0].Trials = nil // the report has them
	return s
}
