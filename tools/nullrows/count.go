package main

import (
	"fmt"
	"slices"
	"strings"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/tools/promise"
)

// counts are the verdicts of all rows.
type counts struct {
	rows            int
	called          int        // the 95 % interval excludes no difference: 5 % expected at most
	calledPromised  int        // worse or better at the margin that was promised before
	decidedPromised int        // not undecided at it: 90 % expected
	promised        [3]float64 // of these margins: lower quartile, median, upper quartile, percent
	calledAtCould   int        // worse or better at the margin read off the row's own spread
	decidedAtCould  int        // not undecided at it: nearly all, by construction
	calledAtMargin  int        // worse or better at the fixed margin
	decidedAtMargin int        // not undecided at it
	could           [3]float64 // quartiles of the margins read off the spread
}

func countRows(s *result.Study) counts {
	e := &s.Experiments[0]
	n := counts{rows: len(e.Rows)}
	pilot := map[string][]float64{} // the pairs of the run before, by row
	for _, t := range e.Trials {    // run 0 is a pilot only
		if _, row, ok := strings.Cut(t.Row, "run 0: "); ok {
			pilot[row] = promise.Pairs(e, t.Row, result.Null).Logs()
		}
	}
	var could, promised []float64
	for i := range e.Rows {
		r := &e.Rows[i]
		_, row, _ := strings.Cut(r.Name, ": ")
		pairs := promise.Pairs(e, r.Name, result.Null).Logs()
		p := promise.Of(pilot[row], pairs)
		pilot[row] = pairs
		c := promise.Comparison(r, result.Null)
		if c == nil {
			continue
		}
		promise.Count(&n.called, c.CI95Pct != nil && (c.CI95Pct[0] > 0 || c.CI95Pct[1] < 0))
		promise.Count(&n.calledAtCould, c.AtCould == stat.Worse || c.AtCould == stat.Better)
		promise.Count(&n.decidedAtCould, c.AtCould != stat.Undecided)
		promise.Count(&n.calledAtMargin, c.Verdict == stat.Worse || c.Verdict == stat.Better)
		promise.Count(&n.decidedAtMargin, c.Verdict != stat.Undecided)
		promise.Count(&n.calledPromised, p.At == stat.Worse || p.At == stat.Better)
		promise.Count(&n.decidedPromised, p.At != stat.Undecided)
		if c.Could != nil {
			could = append(could, *c.Could)
		}
		if p.Pct != nil {
			promised = append(promised, *p.Pct)
		}
	}
	n.could, n.promised = quartiles(could), quartiles(promised)
	return n
}

func quartiles(v []float64) [3]float64 {
	n := len(v)
	if n == 0 {
		return [3]float64{}
	}
	slices.Sort(v)
	return [3]float64{v[n/4], stat.MedianOf(v), v[(3*n)/4]}
}

// The promises: at most 8 % of the rows called worse or better (16 of 200: with 5 % expected, chance alone exceeds that in
// 3 of 100 such experiments), at least 80 % decided at the margin that was promised before.
func (n counts) criteria() []promise.Criterion {
	most, least := 8*n.rows/100, (80*n.rows+99)/100
	return []promise.Criterion{
		{What: "called worse or better at the margin promised before", Count: n.calledPromised, Limit: most, Most: true},
		{What: "called worse or better at the margin of its own spread", Count: n.calledAtCould, Limit: most, Most: true},
		{What: "called worse or better at the fixed margin", Count: n.calledAtMargin, Limit: most, Most: true},
		{What: "decided at the margin promised before", Count: n.decidedPromised, Limit: least},
	}
}

// text sums up the rows.
func (n counts) text(s *result.Study, machine string) string {
	var b strings.Builder
	b.WriteString(promise.FirstLine(s.Machine, machine))
	disk, fio := promise.Tools(s)
	short := result.Brief
	fmt.Fprintf(&b, "%d rows of the host against itself (%s, %s); the fixed margin is %s %%\n", n.rows, disk, fio, short(s.MarginPct))
	b.WriteString(promise.Lines(n.criteria(), n.rows))
	fmt.Fprintf(&b, "95 %% interval without 0: %d; decided at the fixed margin: %d, at that of its own spread: %d\n", n.called, n.decidedAtMargin, n.decidedAtCould)
	fmt.Fprintf(&b, "quartiles of the margins promised: %s, %s, %s %%; of those of the rows' own spread: %s, %s, %s %%\n",
		short(n.promised[0]), short(n.promised[1]), short(n.promised[2]), short(n.could[0]), short(n.could[1]), short(n.could[2]))
	return b.String()
}
