package result

import (
	"math"

	"berth/internal/bench/stat"
)

// Counts says whether a trial is one of those that rows are made of.
func (e *Experiment) Counts(t Trial) bool { return t.Round > 0 && e.Kept(t) }

// Kept says whether a trial is not one of those at the begin of a batch, nor in turn where batches were measured after it.
func (e *Experiment) Kept(t Trial) bool {
	b := e.Design.Batch
	return b == nil || t.Batch > b.Dropped || t.Batch == 0 && b.Rounds > 0 && t.Round <= 0
}

// meanOf is the mean of trials, measure by measure.
func meanOf(all []map[string]float64) map[string]float64 {
	if len(all) == 1 {
		return all[0]
	}
	mean := map[string]float64{}
	for _, v := range all {
		for name, x := range v {
			mean[name] += x / float64(len(all))
		}
	}
	return mean
}

// TestCarry looks for carry-over: among trials in turn by what ran before them; in batches by whether the first one that counts
// still differs from those after it.
func (e *Experiment) TestCarry() {
	e.Carry = nil
	if len(e.Arms) < 2 || len(e.Measures) == 0 {
		return
	}
	name, inTurn := e.Measures[0].Name, []observed(nil)
	for _, t := range e.Trials {
		if v := t.Values[name]; t.Round > 0 && t.Batch == 0 && v > 0 {
			inTurn = append(inTurn, observed{t.Head, t.Session, v})
		}
	}
	if e.Design.Batch == nil {
		e.Carry = carryOver(e.Arms[0].Name, inTurn, e.Measures[0].LessIsBetter)
		return
	}
	e.Carry = e.Settled(e.Measures[0])
}

// Settled tests whether what ran before a batch is gone when its trials begin to count.
func (e *Experiment) Settled(m Measure) []CarryOver {
	type place struct {
		row, arm       string
		session, round int
	}
	first, later := map[place]float64{}, map[place][]float64{}
	for _, t := range e.Trials {
		v := t.Values[m.Name]
		if at := (place{t.Row, t.Arm, t.Session, t.Round}); v > 0 && e.Counts(t) {
			if t.Batch == e.Design.Batch.Dropped+1 {
				first[at] = v
			} else {
				later[at] = append(later[at], v)
			}
		}
	}
	d := map[string][]float64{}
	for _, t := range e.Trials { // in their order, each batch once
		at := place{t.Row, t.Arm, t.Session, t.Round}
		if v, rest := first[at], later[at]; v > 0 && len(rest) > 0 {
			sum := 0.0
			for _, x := range rest {
				sum += x / float64(len(rest))
			}
			ratio := math.Log(v / sum)
			if m.LessIsBetter {
				ratio = -ratio
			}
			d[t.Arm] = append(d[t.Arm], ratio)
			delete(first, at)
		}
	}
	var all []CarryOver
	var ps []float64
	for _, a := range e.Arms {
		if x := d[a.Name]; len(x) >= stat.MinPairs {
			p := stat.Differs(x)
			all = append(all, CarryOver{Arm: a.Name, Itself: len(x), Others: len(x), WorsePct: m.ToPct(stat.NewEstimate(x).Center), P: p})
			ps = append(ps, p)
		}
	}
	for i, p := range stat.Holm(ps) {
		all[i].Adjusted = p
	}
	return all
}
