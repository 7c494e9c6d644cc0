package bench

import (
	"slices"
)

// What was measured is kept; what is said of it can be said again, by the method as it is now: tools/again.

// JudgeAgain makes the rows anew from the trials.
func (r *Report) JudgeAgain() {
	rows := make([]Row, len(r.Rows))
	for i, row := range r.Rows {
		rows[i] = row.Row
	}
	for i, now := range analyse(rows, r.Trials, r.Machine.Cores, r.MarginPct) {
		now.Command, now.Published = r.Rows[i].Command, r.Rows[i].Published
		r.Rows[i] = now
	}
	r.Carry = ofDisk(r.Trials)
}

// JudgeAgain makes all parts anew from the trials.
func (r *Isolation) JudgeAgain() {
	r.Cost, r.Throttle, r.Weights, r.Latency = nil, nil, nil, nil
	r.analyse()
}

// JudgeAgain judges the row and its suspects anew from the trials.
func (x *Explained) JudgeAgain() {
	rep := Report{Rows: []Result{x.Row}, Trials: x.Trials, Machine: x.Machine, MarginPct: x.MarginPct}
	rep.JudgeAgain()
	x.Row = rep.Rows[0]
	var suspects []Suspect
	for _, s := range x.Suspects {
		if s.Kind != InOrder { // which is seen without arms of its own
			suspects = append(suspects, s.Suspect)
		}
	}
	notes := slices.Clone(x.Notes)
	x.judge(suspects)
	x.Notes = notes // those of the first time
}

// JudgeAgain judges the runs anew from their pairs.
func (a *KnownReport) JudgeAgain() {
	var pilot []float64
	for i := range a.Runs {
		r := &a.Runs[i]
		if n := len(r.Host); n == 0 || len(r.Node) != n || len(r.Null) != n {
			continue // a trial had failed: which belong together is not kept
		}
		slower, equal := blocks{r.Host, r.Node}, blocks{r.Host, r.Null}
		r.Slower, r.Equal = *slower.judge(a.MarginPct, penalty).tested(slower, a.MarginPct), *equal.judge(a.MarginPct, penalty).tested(equal, a.MarginPct)
		r.Slower.Corrected, r.Equal.Corrected = r.Slower.Verdict, r.Equal.Verdict // tables of one row
		if i > 0 {
			r.Promised = promise(pilot, equal.logs()) // the first one's pilot is not kept
		}
		pilot = equal.logs()
	}
	ended := a.Ended
	a.sum()
	a.Ended = ended
}
