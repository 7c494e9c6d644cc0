package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"
)

// StartFormat names the JSON document of make bench-start; docs/bench-json.md describes it.
const StartFormat = "berth-bench-start/1"

// StartReport is how fast nodes start, beside runc: several runs, in each the two in batches.
type StartReport struct {
	Format  string     `json:"format"`
	Started time.Time  `json:"started"`
	Ended   time.Time  `json:"ended"`
	Machine Machine    `json:"machine"`
	Seed    uint64     `json:"seed"`
	Runs    int        `json:"runs"`
	Rounds  int        `json:"rounds"` // of a batch of each, in each run
	Batch   Batch      `json:"batch"`
	Rows    []StartRow `json:"rows"`
}

// StartRow is one measurement beside its target.
type StartRow struct {
	What    string      `json:"what"`
	Unit    string      `json:"unit"`
	Berth   float64     `json:"berth"`           // median; of runs, of their medians
	Other   float64     `json:"other,omitempty"` // of what it is compared with
	Ratio   *Ratio      `json:"ratio,omitempty"` // of Berth to the other, runs being the units
	Target  string      `json:"target"`          // in words
	Met     bool        `json:"met"`             // for a ratio: by the upper end of its interval
	Runs    []StartRun  `json:"runs,omitempty"`  // of a ratio
	Carry   []CarryOver `json:"carry_over,omitempty"`
	Samples []float64   `json:"samples,omitempty"` // of a row without one
}

// StartRun is one run: batch by batch, in their order, with those that do not count.
type StartRun struct {
	Berth   float64      `json:"berth"` // median of those that count
	Other   float64      `json:"other"`
	Batches []StartBatch `json:"batches"`
}

// StartBatch are trials of one arm in a row.
type StartBatch struct {
	Arm string    `json:"arm"` // berth, or the other
	MS  []float64 `json:"ms"`
}

// Kept are the trials of an arm that count.
func (b Batch) Kept(batches []StartBatch, arm string) []float64 {
	var all []float64
	for _, x := range batches {
		if x.Arm == arm {
			all = append(all, x.MS[min(b.Dropped, len(x.MS)):]...)
		}
	}
	return all
}

// RunsRatio is the ratio of berth to other over runs: the mean of the runs' log ratios, with Student's interval. Of five runs there are
// too few for ranks; what is common to all trials of a run (where its groups and folders happen to lie) is in the spread of runs alone.
func RunsRatio(runs []StartRun) *Ratio {
	n := float64(len(runs))
	if n == 0 {
		return nil
	}
	mean, square := 0.0, 0.0
	for _, r := range runs {
		mean += math.Log(r.Berth/r.Other) / n
	}
	for _, r := range runs {
		square += math.Pow(math.Log(r.Berth/r.Other)-mean, 2)
	}
	ratio := &Ratio{Rounds: len(runs), Factor: math.Exp(mean)}
	if n > 1 {
		half := studentQuantile(.975, n-1) * math.Sqrt(square/(n-1)/n)
		ratio.CI95 = &[2]float64{math.Exp(mean - half), math.Exp(mean + half)}
	}
	return ratio
}

// Settled tests whether the first trials of batches that count still differ from those after them.
func (b Batch) Settled(runs []StartRun, arms ...string) []CarryOver {
	e := Experiment{About: About{Measures: []Measure{{Name: "ms", LessIsBetter: true}}}, Design: Design{Batch: &b}}
	for _, a := range arms {
		e.Arms = append(e.Arms, ArmInfo{Name: a})
	}
	for i, r := range runs {
		for j, x := range r.Batches {
			for k, ms := range x.MS {
				e.Trials = append(e.Trials, StudyTrial{
					Head: Head{Arm: x.Arm, Round: j + 1}, Session: i + 1, Batch: k + 1, Values: map[string]float64{"ms": ms},
				})
			}
		}
	}
	return e.settled(e.Measures[0])
}

// JSON writes the whole document.
func (r *StartReport) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(r)
}

// Study shows the report as a study of one experiment.
func (r *StartReport) Study() *Study {
	e := Experiment{
		About: About{
			Name: "start", Title: "how fast a node starts", Question: "How long does a start take, in times of runc's?",
			Setting:  fmt.Sprintf("busybox in memory; %d runs of %d rounds, in each a batch of each arm; a pair is a run", r.Runs, r.Rounds),
			Measures: []Measure{{Name: "ms", Title: "time", Unit: "ms", LessIsBetter: true, Compared: true}},
		},
		Arms:   []ArmInfo{{Name: "runc", Title: "runc"}, {Name: "berth", Title: "berth"}},
		Design: Design{Pairs: r.Runs, Batch: &r.Batch},
	}
	var alone []StudyRow // compared with nothing: below the others
	for _, row := range r.Rows {
		out := StudyRow{Name: row.What, Arms: []ArmMedian{{Arm: "berth", Trials: max(len(row.Runs), 1), Values: map[string]float64{"ms": row.Berth}}}}
		if row.Ratio != nil && row.Ratio.CI95 != nil {
			c := Comparison{Pairs: len(row.Runs), PenaltyPct: 100 * (row.Ratio.Factor - 1), Verdict: Undecided, AtCould: Undecided}
			c.CI95Pct = &[2]float64{100 * (row.Ratio.CI95[0] - 1), 100 * (row.Ratio.CI95[1] - 1)}
			switch {
			case c.CI95Pct[0] > 0:
				c.Verdict = Worse
			case c.CI95Pct[1] < 0:
				c.Verdict = Better
			}
			out.Arms = append(out.Arms, ArmMedian{Arm: "runc", Trials: len(row.Runs), Values: map[string]float64{"ms": row.Other}})
			out.Compared = []StudyComparison{{Arm: "berth", Measure: "ms", Penalty: &c}}
			e.Carry = append(e.Carry, row.Carry...)
			e.Rows = append(e.Rows, out)
		} else {
			out.Name += ", " + row.Unit
			alone = append(alone, out)
		}
		e.Notes = append(e.Notes, fmt.Sprintf("%s: %.1f %s; %s: %s", row.What, row.Berth, row.Unit, row.Target, map[bool]string{true: "met", false: "MISSED"}[row.Met]))
	}
	e.Rows = append(e.Rows, alone...)
	return &Study{Started: r.Started, Ended: r.Ended, Seed: r.Seed, Machine: r.Machine, Emulated: r.Machine.Emulation(), Experiments: []Experiment{e}}
}
