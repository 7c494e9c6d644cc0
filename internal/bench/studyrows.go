package bench

import (
	"maps"
	"slices"
)

// analyse turns the trials of an experiment into the results of its rows, whose names, commands and published figures
// are there already. It does no I/O: what it finds is a function of the trials and the margin.
func (e *Experiment) analyse(marginPct float64) {
	e.disturb()
	var measured []StudyRow
	for _, r := range e.Rows {
		by, failed := e.byArm(r.Name, e.counts)
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

// slot is where a trial belongs to a block: rounds of different sessions have nothing in common.
type slot struct{ session, round int }

// byArm returns what those of a row's trials measured that are wanted: the mean of those of a batch.
func (e *Experiment) byArm(row string, wanted func(StudyTrial) bool) (by map[string]map[slot]StudyTrial, failed bool) {
	by = map[string]map[slot]StudyTrial{}
	in := map[string]map[slot][]map[string]float64{}
	for _, t := range e.Trials {
		if t.Row != row || !wanted(t) {
			continue
		}
		failed = failed || t.Error != ""
		if t.Values == nil {
			continue
		}
		if by[t.Arm] == nil {
			by[t.Arm], in[t.Arm] = map[slot]StudyTrial{}, map[slot][]map[string]float64{}
		}
		at := slot{t.Session, t.Round}
		in[t.Arm][at] = append(in[t.Arm][at], t.Values)
		t.Disturbed = slices.Concat(by[t.Arm][at].Disturbed, t.Disturbed)
		t.Values = meanOf(in[t.Arm][at])
		by[t.Arm][at] = t
	}
	return by, failed
}

func (e *Experiment) medians(arm string, trials map[slot]StudyTrial) ArmMedian {
	m := ArmMedian{Arm: arm, Trials: len(trials), Values: map[string]float64{}}
	for _, t := range trials {
		count(&m.Disturbed, len(t.Disturbed) > 0)
	}
	for _, of := range e.Measures {
		if x := of.all(trials); len(x) > 0 {
			m.Values[of.Name] = MedianOf(x)
		}
	}
	return m
}

// all returns the values of a measure.
func (m Measure) all(trials map[slot]StudyTrial) []float64 {
	var x []float64
	for _, t := range trials {
		if v, ok := t.Values[m.Name]; ok {
			x = append(x, v)
		}
	}
	return x
}

// toPct turns a log ratio in which more is better into percent of the reference's that are lost, or are needed more.
func (m Measure) toPct(logRatio float64) float64 {
	if m.LessIsBetter {
		return extra(logRatio)
	}
	return penalty(logRatio)
}

// compare judges an arm by each measure that has values in both.
func (e *Experiment) compare(arm string, ref, trials map[slot]StudyTrial, marginPct float64) []StudyComparison {
	var all []StudyComparison
	for _, m := range e.Measures {
		if !m.Compared {
			continue
		}
		b, sessions := m.blocks(ref, trials)
		if len(b.arm) == 0 {
			continue
		}
		t := b.tests(marginPct)
		c := StudyComparison{Arm: arm, Measure: m.Name, Penalty: b.judge(marginPct, m.toPct), P: t.P, PEquiv: t.PEquiv}
		if e.Arms[0].Name == askedArm { // it was not measured, so nothing in a round cancels the noise of the round
			c.Penalty = judgeBy(located, b.logs(), marginPct, m.toPct)
		}
		if len(sessions) > 1 {
			for _, number := range slices.Sorted(maps.Keys(sessions)) {
				c.Sessions = append(c.Sessions, m.toPct(estimate(sessions[number]).Center))
			}
		}
		all = append(all, c)
	}
	return all
}

// blocks returns those in which both arms were measured, more being better, in the order of sessions and rounds; and the log
// ratios by session.
func (m Measure) blocks(ref, trials map[slot]StudyTrial) (all blocks, sessions map[int][]float64) {
	host, arm := map[int]map[int]float64{}, map[int]map[int]float64{}
	for into, from := range map[*map[int]map[int]float64]map[slot]StudyTrial{&host: ref, &arm: trials} {
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
		if b := inBlocks(host[number], arm[number]); len(b.arm) > 0 {
			sessions[number] = b.logs()
			all.ref, all.arm = append(all.ref, b.ref...), append(all.arm, b.arm...)
		}
	}
	return all, sessions
}

// corrected is decide for adjusted p-values.
func corrected(differ, equal, penaltyPct float64) Verdict {
	switch {
	case equal <= 0.05:
		return Equivalent
	case differ <= 0.05 && penaltyPct > 0:
		return Worse
	case differ <= 0.05:
		return Better
	}
	return Undecided
}

func (e *Experiment) rowFlags(r StudyRow, by map[string]map[slot]StudyTrial, failed bool) []Flag {
	var f []Flag
	if failed {
		f = append(f, TrialError)
	}
	disturbed, far, all := 0, 0, 0
	for _, a := range r.Arms {
		if a.Arm == askedArm {
			continue // nothing was measured there
		}
		x := e.Measures[0].all(by[a.Arm])
		disturbed, far, all = disturbed+a.Disturbed, far+outliers(x), all+len(x)
	}
	if 10*far > all || 10*disturbed > all {
		f = append(f, Disturbed)
	}
	if drifts(e.Measures[0], by[e.Arms[0].Name]) {
		f = append(f, Drifts)
	}
	for _, c := range r.Compared {
		if c.Arm == nullArm && (c.Penalty.Verdict == Worse || c.Penalty.Verdict == Better) {
			return append(f, ArmsDiffer)
		}
	}
	return f
}

// drifts says whether the reference's last third of trials differs from its first by more than a tenth: a disk that
// was not in its steady state, a CPU that warmed up. It does not bias the comparison of neighbours.
func drifts(m Measure, ref map[slot]StudyTrial) bool {
	at := slices.SortedFunc(maps.Keys(ref), func(a, b slot) int {
		if a.session != b.session {
			return a.session - b.session
		}
		return a.round - b.round
	})
	n := len(at) / 3
	if n < 2 {
		return false
	}
	third := func(of []slot) float64 {
		var x []float64
		for _, s := range of {
			x = append(x, ref[s].Values[m.Name])
		}
		return MedianOf(x)
	}
	first, last := third(at[:n]), third(at[len(at)-n:])
	return last > 1.1*first || first > 1.1*last
}
