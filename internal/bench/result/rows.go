package result

import (
	"maps"
	"slices"

	"berth/internal/bench/stat"
)

// Analyse turns the trials of an experiment into the results of its rows, whose names, commands and published figures
// are there already. It does no I/O: what it finds is a function of the trials and the margin.
func (e *Experiment) Analyse(marginPct float64) {
	e.disturb()
	var measured []Row
	for _, r := range e.Rows {
		by, failed := e.ByArm(r.Name, e.Counts)
		e.addAsked(r, by)
		if len(by) == 0 {
			continue // interrupted before it
		}
		for _, a := range e.Arms {
			if by[a.Name] == nil {
				continue
			}
			r.Arms = append(r.Arms, e.medians(a.Name, by[a.Name]))
			if a.Name != e.Arms[0].Name {
				r.Compared = append(r.Compared, e.compare(a.Name, by[e.Arms[0].Name], by[a.Name], marginPct)...)
			}
		}
		r.Flags = append(r.Flags, e.rowFlags(r, by, failed)...)
		measured = append(measured, r)
	}
	e.Rows = measured
}

// Slot is where a trial belongs to a block: rounds of different sessions have nothing in common.
type Slot struct{ session, round int }

// ByArm returns the values of those of a row's trials that are wanted, by arm; of a batch, the mean of its trials.
func (e *Experiment) ByArm(row string, wanted func(Trial) bool) (by map[string]map[Slot]Trial, failed bool) {
	by = map[string]map[Slot]Trial{}
	in := map[string]map[Slot][]map[string]float64{}
	for _, t := range e.Trials {
		if t.Row != row || !wanted(t) {
			continue
		}
		failed = failed || t.Error != ""
		if t.Values == nil {
			continue
		}
		if by[t.Arm] == nil {
			by[t.Arm], in[t.Arm] = map[Slot]Trial{}, map[Slot][]map[string]float64{}
		}
		at := Slot{t.Session, t.Round}
		in[t.Arm][at] = append(in[t.Arm][at], t.Values)
		t.Disturbed = slices.Concat(by[t.Arm][at].Disturbed, t.Disturbed)
		t.Values = meanOf(in[t.Arm][at])
		by[t.Arm][at] = t
	}
	return by, failed
}

func (e *Experiment) medians(arm string, trials map[Slot]Trial) ArmMedian {
	m := ArmMedian{Arm: arm, Trials: len(trials), Values: map[string]float64{}}
	for _, t := range trials {
		if len(t.Disturbed) > 0 {
			m.Disturbed++
		}
	}
	for _, of := range e.Measures {
		if x := of.all(trials); len(x) > 0 {
			m.Values[of.Name] = stat.MedianOf(x)
		}
	}
	return m
}

// all returns the values of a measure.
func (m Measure) all(trials map[Slot]Trial) []float64 {
	var x []float64
	for _, t := range trials {
		if v, ok := t.Values[m.Name]; ok {
			x = append(x, v)
		}
	}
	return x
}

// ToPct turns a log ratio in which more is better into percent of the reference's that are lost, or are needed more.
func (m Measure) ToPct(logRatio float64) float64 {
	if m.LessIsBetter {
		return stat.Extra(logRatio)
	}
	return stat.Penalty(logRatio)
}

// compare judges an arm by each measure that has values in both.
func (e *Experiment) compare(arm string, ref, trials map[Slot]Trial, marginPct float64) []Comparison {
	var all []Comparison
	for _, m := range e.Measures {
		if !m.Compared {
			continue
		}
		b, sessions := m.Pairs(ref, trials)
		if len(b.Arm) == 0 {
			continue
		}
		c := Comparison{Arm: arm, Measure: m.Name, Penalty: b.Judge(marginPct, m.ToPct)}
		c.P, c.PEquiv = b.Tests(marginPct)
		if e.Arms[0].Name == Asked { // it was not measured, so nothing in a round cancels the noise of the round
			c.Penalty = stat.JudgeSerial(b.Logs(), marginPct, m.ToPct)
		}
		if len(sessions) > 1 {
			for _, number := range slices.Sorted(maps.Keys(sessions)) {
				c.Sessions = append(c.Sessions, m.ToPct(stat.NewEstimate(sessions[number]).Center))
			}
		}
		all = append(all, c)
	}
	return all
}

// Pairs returns those in which both arms were measured, more being better, in the order of sessions and rounds; and the log
// ratios by session.
func (m Measure) Pairs(ref, trials map[Slot]Trial) (all stat.Pairs, sessions map[int][]float64) {
	host, arm := map[int]map[int]float64{}, map[int]map[int]float64{}
	for into, from := range map[*map[int]map[int]float64]map[Slot]Trial{&host: ref, &arm: trials} {
		for at, t := range from {
			if (*into)[at.session] == nil {
				(*into)[at.session] = map[int]float64{}
			}
			(*into)[at.session][at.round] = t.Values[m.Name]
		}
	}
	if m.LessIsBetter {
		host, arm = arm, host
	}
	sessions = map[int][]float64{}
	for _, number := range slices.Sorted(maps.Keys(arm)) {
		if b := stat.PairUp(host[number], arm[number]); len(b.Arm) > 0 {
			sessions[number] = b.Logs()
			all.Ref, all.Arm = append(all.Ref, b.Ref...), append(all.Arm, b.Arm...)
		}
	}
	return all, sessions
}

func (e *Experiment) rowFlags(r Row, by map[string]map[Slot]Trial, failed bool) []Flag {
	var f []Flag
	if failed {
		f = append(f, TrialError)
	}
	disturbed, far, all := 0, 0, 0
	for _, a := range r.Arms {
		if a.Arm == Asked {
			continue // nothing was measured there
		}
		x := e.Measures[0].all(by[a.Arm])
		disturbed, far, all = disturbed+a.Disturbed, far+stat.Outliers(x), all+len(x)
	}
	if 10*far > all || 10*disturbed > all {
		f = append(f, Disturbed)
	}
	if drifts(e.Measures[0], by[e.Arms[0].Name]) {
		f = append(f, Drifts)
	}
	for _, c := range r.Compared {
		if c.Arm == Null && (c.Penalty.Verdict == stat.Worse || c.Penalty.Verdict == stat.Better) {
			return append(f, ArmsDiffer)
		}
	}
	return f
}

// drifts says whether the reference's last third of trials differs from its first by more than a tenth: a disk that
// was not in its steady state, a CPU that warmed up. It does not bias the comparison of neighbours.
func drifts(m Measure, ref map[Slot]Trial) bool {
	at := slices.SortedFunc(maps.Keys(ref), func(a, b Slot) int {
		if a.session != b.session {
			return a.session - b.session
		}
		return a.round - b.round
	})
	n := len(at) / 3
	if n < 2 {
		return false
	}
	third := func(of []Slot) float64 {
		var x []float64
		for _, s := range of {
			x = append(x, ref[s].Values[m.Name])
		}
		return stat.MedianOf(x)
	}
	first, last := third(at[:n]), third(at[len(at)-n:])
	return last > 1.1*first || first > 1.1*last
}

// addAsked gives the arm that stands for what was asked the same values in each round in which another arm was measured.
func (e *Experiment) addAsked(r Row, by map[string]map[Slot]Trial) {
	if r.Asked == nil || len(by) == 0 {
		return
	}
	asked := map[Slot]Trial{}
	for _, trials := range by {
		for at := range trials {
			asked[at] = Trial{Values: r.Asked}
		}
	}
	by[Asked] = asked
}
