package main

import (
	"fmt"
	"math"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// line is one measurement beside its target.
type line struct {
	what, unit string
	berth      float64 // median; of several runs, of their medians
	target     string
	met        bool

	// For a comparison:
	most  float64     // the target: the upper end of the ratio's interval
	other float64     // the other arm's median
	ratio float64     // berth to the other: the geometric mean of the runs' ratios
	ci95  *[2]float64 // 95 % interval of ratio, with runs as units; nil with one run
	carry []result.CarryOver
}

var milliseconds = result.Measure{Name: "ms", Title: "time", Unit: "ms", LessIsBetter: true, Compared: true}

// judge fills in a comparison. The interval is Student's over the runs' log ratios: five runs are too few for ranks. What all trials
// of a run have in common (where its groups and folders happen to lie) is in the spread of the runs alone.
func (b *bench) judge(l line) line {
	e := result.Experiment{About: result.About{Measures: []result.Measure{milliseconds}}, Arms: []result.Arm{{Name: "berth"}, {Name: b.other}}, Design: result.Design{Batch: &b.batch}}
	kept := map[string][][]float64{"berth": make([][]float64, b.runs), b.other: make([][]float64, b.runs)} // by run
	for _, t := range b.trials {
		if t.Row != l.what {
			continue
		}
		e.Trials = append(e.Trials, t)
		if t.Batch > b.batch.Dropped {
			kept[t.Arm][t.Session-1] = append(kept[t.Arm][t.Session-1], t.Values["ms"])
		}
	}
	var ours, theirs, logs []float64
	for i := range b.runs {
		berth, other := stat.MedianOf(kept["berth"][i]), stat.MedianOf(kept[b.other][i])
		ours, theirs, logs = append(ours, berth), append(theirs, other), append(logs, math.Log(berth/other))
	}
	mean, n := stat.Mean(logs), float64(b.runs)
	l.berth, l.other, l.ratio, l.carry = stat.MedianOf(ours), stat.MedianOf(theirs), math.Exp(mean), e.Settled(milliseconds)
	if n > 1 {
		square := 0.0
		for _, v := range logs {
			square += (v - mean) * (v - mean)
		}
		half := stat.StudentQuantile(.975, n-1) * math.Sqrt(square/(n-1)/n)
		l.ci95 = &[2]float64{math.Exp(mean - half), math.Exp(mean + half)}
	}
	l.target = fmt.Sprintf("at most %g times, by the upper end", l.most)
	l.met = l.ci95 != nil && l.ci95[1] <= l.most
	return l
}

// verdict says whether the target is met.
func (l line) verdict() string {
	if l.met {
		return "met"
	}
	return "MISSED"
}

// print prints the table and returns how many targets are missed.
func (b *bench) print() (missed int) {
	fmt.Printf("%-62s %9s %9s  %s\n", "", "berth", b.other, "target")
	for _, l := range b.lines {
		other, ratio := "-", ""
		if l.most > 0 {
			other, ratio = fmt.Sprintf("%.1f %s", l.other, l.unit), fmt.Sprintf(" %.2f", l.ratio)
		}
		if l.ci95 != nil {
			ratio += fmt.Sprintf(" (%.2f..%.2f)", l.ci95[0], l.ci95[1])
		}
		if !l.met {
			missed++
		}
		fmt.Printf("%-62s %9s %9s  %s: %s%s\n", l.what, fmt.Sprintf("%.1f %s", l.berth, l.unit), other, l.target, l.verdict(), ratio)
		for _, c := range l.carry {
			word := "as those after them"
			if c.Shown() {
				word = "NOT as those after them: make batches longer (-batch, -drop)"
			}
			fmt.Printf("  the first trials of a batch of %s that count are %s (%+.1f %%, p = %.2g)\n", c.Arm, word, c.WorsePct, c.Adjusted)
		}
	}
	fmt.Printf("Ratios: geometric mean of %d runs with its 95 %% interval, runs being the units; in a run %d batches of %d of each, the first %d of which do not count.\n",
		b.runs, b.rounds, b.batch.Trials, b.batch.Dropped)
	return missed
}

// study makes a study of one experiment. Its rows are judged by runs, not by pairs.
func (b *bench) study(m result.Machine) *result.Study {
	e := result.Experiment{
		About: result.About{
			Name: "start", Title: "how fast a node starts", Question: "How long does a start take, in times of the other's?",
			Setting:  fmt.Sprintf("busybox in memory; %d runs of %d rounds, in each a batch of each arm; a pair is a run", b.runs, b.rounds),
			Measures: []result.Measure{milliseconds},
		},
		Arms:   []result.Arm{{Name: b.other, Title: b.other}, {Name: "berth", Title: "berth"}},
		Design: result.Design{Pairs: b.runs, Batch: &b.batch}, Trials: b.trials,
	}
	var alone []result.Row // compared with nothing: below the others
	for _, l := range b.lines {
		e.Notes = append(e.Notes, fmt.Sprintf("%s: %.1f %s; %s: %s", l.what, l.berth, l.unit, l.target, l.verdict()))
		if l.ci95 == nil {
			alone = append(alone, result.Row{Name: l.what + ", " + l.unit, Arms: []result.ArmMedian{median("berth", 1, l.berth)}})
			continue
		}
		c := stat.Comparison{Pairs: b.runs, PenaltyPct: 100 * (l.ratio - 1), Verdict: stat.Undecided, AtCould: stat.Undecided}
		c.CI95Pct = &[2]float64{100 * (l.ci95[0] - 1), 100 * (l.ci95[1] - 1)}
		switch {
		case c.CI95Pct[0] > 0:
			c.Verdict = stat.Worse
		case c.CI95Pct[1] < 0:
			c.Verdict = stat.Better
		}
		e.Rows = append(e.Rows, result.Row{
			Name: l.what, Arms: []result.ArmMedian{median("berth", b.runs, l.berth), median(b.other, b.runs, l.other)},
			Compared: []result.Comparison{{Arm: "berth", Measure: "ms", Penalty: &c}},
		})
		e.Carry = append(e.Carry, l.carry...)
	}
	e.Rows = append(e.Rows, alone...)
	return &result.Study{
		Format: result.Format, Title: "Berth benchmark: how fast nodes start", Seed: b.seed, Machine: m, Emulated: m.Emulation(), OneByOne: true,
		Experiments: []result.Experiment{e},
	}
}

func median(arm string, trials int, ms float64) result.ArmMedian {
	return result.ArmMedian{Arm: arm, Trials: trials, Values: map[string]float64{"ms": ms}}
}
