package main

import (
	"context"
	"fmt"
	"math"
	"strings"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/bench/stat"
	"berth/tools/promise"
)

// known says what is compared.
type known struct {
	runs      int
	truePct   float64 // penalty of the slower arm, percent
	mechanism string  // the cause of the difference
	machine   string
}

// measure runs one row in three arms again and again, each time with another order: host, an equal one, and a slower one. Each
// run is the pilot of the next one; the first is that alone. Interrupted, it returns what it has, marked partial, beside the error.
func (k known) measure(ctx context.Context, o bed.Options, job bed.Job, host, equal, slower side.Arm, progress func(done int)) (*result.Study, error) {
	about := result.About{
		Name: "known", Title: "A difference of known size", Question: fmt.Sprintf("Is a loss of %s %% found, and none where there is none?", result.Brief(k.truePct)),
		Setting: "reads that the kernel caps (" + k.mechanism + "); each run is judged by itself",
	}
	sides := []bed.Side{
		{Name: result.Host, Title: "the reference", Run: host}, {Name: result.Null, Title: "an equal arm", Run: equal}, {Name: result.Node, Title: "the slower arm", Run: slower},
	}
	all, err := promise.Repeat(ctx, o, about, []bed.Job{job}, sides, func(run int, _ string) string { return fmt.Sprintf("run %d", run) }, func(run, _ int) bool {
		progress(run - 1)
		return run <= k.runs
	})
	if err == nil {
		all.Judge()
	}
	return all, err
}

// counts are what the runs said.
type counts struct {
	runs       int
	worse      int // the slower arm was called worse
	holds      int // its 95 % interval holds the truth
	equivalent int // the equal arm was called equivalent within the margin that was promised before the run
	called     int // the equal arm was called worse or better, at that margin, that of its own spread, or the fixed one
	lines      strings.Builder
}

func (k known) count(s *result.Study) *counts {
	e := &s.Experiments[0]
	n := &counts{runs: len(e.Rows)}
	pilot := promise.Pairs(e, "run 0", result.Null).Logs()
	different := func(v stat.Verdict) bool { return v == stat.Worse || v == stat.Better }
	for i := range e.Rows {
		r := &e.Rows[i]
		pairs := promise.Pairs(e, r.Name, result.Null).Logs()
		p := promise.Of(pilot, pairs)
		pilot = pairs
		slower, equal := promise.Comparison(r, result.Node), promise.Comparison(r, result.Null)
		if slower == nil || equal == nil {
			continue
		}
		promise.Count(&n.worse, slower.Verdict == stat.Worse)
		promise.Count(&n.holds, slower.CI95Pct != nil && slower.CI95Pct[0] <= k.truePct && k.truePct <= slower.CI95Pct[1])
		promise.Count(&n.equivalent, p.At == stat.Equivalent)
		promise.Count(&n.called, different(p.At) || different(equal.AtCould) || different(equal.Verdict))
		at := "-"
		if p.Pct != nil {
			at = result.Brief(*p.Pct)
		}
		fmt.Fprintf(&n.lines, "%2d  slower %-22s %-10s  equal %-22s at %s %%: %s\n", i+1, fine(slower), slower.Verdict, fine(equal), at, p.At)
	}
	return n
}

// The criteria, as parts of the runs: of 20 they are 16, 17, 16 and at most 3. An interval of 95 % holds the truth in
// fewer than 17 of 20 runs with a probability of 1.6 %.
func (n *counts) criteria() []promise.Criterion {
	least := func(part float64) int { return int(math.Ceil(part*float64(n.runs) - 1e-9)) }
	return []promise.Criterion{
		{What: "the slower arm is called worse", Count: n.worse, Limit: least(.80)},
		{What: "the true difference lies in the 95 % interval", Count: n.holds, Limit: least(.85)},
		{What: "equal arms are called equivalent", Count: n.equivalent, Limit: least(.80)},
		{What: "equal arms are called worse or better", Count: n.called, Limit: int(.15 * float64(n.runs)), Most: true},
	}
}

// text sums up the runs, and prints a line for each.
func (k known) text(n *counts, s *result.Study) string {
	e := &s.Experiments[0]
	disk, fio := promise.Tools(s)
	return promise.FirstLine(s.Machine, k.machine) + fmt.Sprintf("%d runs of %d pairs: one arm slower by %s %% (%s on %s), one equal; margin %s %%; %s\n",
		n.runs, e.Design.Pairs, result.Brief(k.truePct), k.mechanism, disk, result.Brief(s.MarginPct), fio) +
		promise.Lines(n.criteria(), n.runs) + n.lines.String()
}

// fine prints a penalty with two decimals, which a difference of 3 % needs.
func fine(c *stat.Comparison) string {
	if c.CI95Pct == nil {
		return fmt.Sprintf("%+.2f", c.PenaltyPct)
	}
	return fmt.Sprintf("%+.2f (%+.2f..%+.2f)", c.PenaltyPct, c.CI95Pct[0], c.CI95Pct[1])
}
