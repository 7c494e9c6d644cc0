package result

import (
	"slices"

	"berth/internal/bench/stat"
)

// family holds the comparisons of a run that are corrected together: those by which the rows of a page are judged; those of the
// other measures; those of the reference with itself; those of ingredients that were tried.
type family struct{ null, first, tried bool }

// correct gives each comparison of a run its verdict among all of its family.
func (s *Study) correct() {
	families := map[family][]*Comparison{}
	for i := range s.Experiments {
		for j := range s.Experiments[i].Rows {
			r := &s.Experiments[i].Rows[j]
			for k := range r.Compared {
				c := &r.Compared[k]
				at := family{null: c.Arm == Null, first: c.Measure == r.Compared[0].Measure, tried: r.Tried != nil}
				families[at] = append(families[at], c)
			}
		}
	}
	for _, cs := range families {
		differ, equal := make([]float64, len(cs)), make([]float64, len(cs))
		for i, c := range cs {
			differ[i], equal[i] = c.P, c.PEquiv
		}
		differ, equal = stat.Holm(differ), stat.Holm(equal)
		for i, c := range cs {
			c.Corrected = stat.Corrected(differ[i], equal[i], c.Penalty.PenaltyPct)
		}
	}
}

// Judge computes the rows of all experiments from their trials. Ingredients that were tried are judged by the trials of the
// experiment before theirs; any other experiment without trials stays as it is.
func (s *Study) Judge() {
	var measured *Experiment // the last one with trials
	for i := range s.Experiments {
		if e := &s.Experiments[i]; len(e.Trials) > 0 {
			for j := range e.Rows {
				r := &e.Rows[j]
				r.Arms, r.Compared = nil, nil
				r.Flags = slices.DeleteFunc(slices.Clone(r.Flags), func(f Flag) bool { return f != SchedulerBound && f != NotSteady })
			}
			if b := e.Design.Batch; b != nil && b.Rounds > 0 && !slices.ContainsFunc(e.Trials, func(t Trial) bool { return e.Counts(t) && t.Values != nil }) {
				e.Design.Batch = nil // interrupted before the first of them: there is what was measured in turn, with what is said of it
			}
			e.TestCarry()
			e.Analyse(s.MarginPct)
			measured = e
		} else if measured != nil && slices.ContainsFunc(e.Rows, func(r Row) bool { return r.Tried != nil }) {
			e.judgeTried(measured, s.MarginPct)
		}
	}
	if !s.OneByOne {
		s.correct()
	}
}
