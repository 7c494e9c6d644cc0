package shares

import (
	"fmt"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// study shows the rows in the form that berth bench report prints: medians over windows beside the values asked for.
func (f *File) study() *result.Study {
	s := &result.Study{Format: result.Format, Title: "Berth: what nodes get of a disk"}
	for _, kind := range []struct{ name, unit, title string }{{"share", "%", "Shares of a disk by weight"}, {"rate", "B/s", "Rates"}} {
		e := result.Experiment{
			About: result.About{
				Name: kind.name + "s", Title: kind.title, Question: "What does a node get of what was asked?",
				Measures: []result.Measure{{Name: kind.name, Title: kind.name, Unit: kind.unit}},
			},
			Arms: []result.Arm{{Name: result.Asked, Title: "what was asked"}, {Name: result.Node, Title: "what the node got"}},
		}
		for _, r := range f.Rows {
			if s.Started.IsZero() || r.Started.Before(s.Started) {
				s.Started, s.Ended = r.Started, r.Started
			}
			if (r.Kind == Share) != (kind.name == "share") {
				continue
			}
			nodes := len(r.Asked)
			if r.Kind != Share {
				nodes = min(nodes, 1) // only the first node has a rate
			}
			for i := range nodes {
				got := r.got(i)
				e.Design.Pairs = max(e.Design.Pairs, len(got))
				e.Rows = append(e.Rows, result.Row{Name: fmt.Sprintf("%s, node %d", r.Name, i+1), Arms: []result.ArmMedian{
					{Arm: result.Asked, Trials: len(got), Values: map[string]float64{kind.name: r.Asked[i]}},
					{Arm: result.Node, Trials: len(got), Values: map[string]float64{kind.name: stat.MedianOf(got)}},
				}})
			}
		}
		if len(e.Rows) > 0 {
			s.Experiments = append(s.Experiments, e)
		}
	}
	return s
}

// got returns what a node got in each window: its share in percent, or bytes a second.
func (r *Row) got(i int) (all []float64) {
	for _, window := range r.Got {
		if i >= len(window) {
			continue
		}
		v := window[i]
		if whole := sum(window); r.Kind == Share && whole > 0 {
			v = 100 * v / whole
		}
		all = append(all, v)
	}
	return all
}
