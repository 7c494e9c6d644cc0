package bench

import (
	"fmt"
	"slices"
	"strings"
)

// Tests are the p-values of a comparison and its verdict among all of its table.
type Tests struct {
	P         float64 `json:"p_differs"`         // two-sided signed-rank test of no difference
	PEquiv    float64 `json:"p_equivalent"`      // the larger of the two one-sided tests against the margin
	Corrected Verdict `json:"verdict_corrected"` // with Holm's correction over the rows of the table
}

// tested adds the p-values; b is what was judged. c may be nil.
func (c *Comparison) tested(b blocks, marginPct float64) *Comparison {
	if c != nil {
		t := b.tests(marginPct)
		c.Tests = &t
	}
	return c
}

// family are the comparisons of a run that are corrected together: all on its page that rows are judged by, and those of the other
// measures, which explain; apart from them the reference against itself.
type family struct{ null, first bool }

// correct gives each comparison of a run its verdict among all of its family.
func (s *Study) correct() {
	families := map[family][]*StudyComparison{}
	for i := range s.Experiments {
		for j := range s.Experiments[i].Rows {
			r := &s.Experiments[i].Rows[j]
			for k := range r.Compared {
				c := &r.Compared[k]
				at := family{null: c.Arm == nullArm, first: c.Measure == r.Compared[0].Measure}
				families[at] = append(families[at], c)
			}
		}
	}
	for _, cs := range families {
		differ, equal := make([]float64, len(cs)), make([]float64, len(cs))
		for i, c := range cs {
			differ[i], equal[i] = c.P, c.PEquiv
		}
		differ, equal = holm(differ), holm(equal)
		for i, c := range cs {
			c.Corrected = corrected(differ[i], equal[i], c.Penalty.PenaltyPct)
		}
	}
}

// Judge makes the rows of all experiments anew from their trials. An experiment without trials stays as it is.
func (s *Study) Judge() {
	for i := range s.Experiments {
		if e := &s.Experiments[i]; len(e.Trials) > 0 {
			for j := range e.Rows {
				r := &e.Rows[j]
				r.Arms, r.Compared = nil, nil
				r.Flags = slices.DeleteFunc(slices.Clone(r.Flags), func(f Flag) bool { return f != SchedulerBound && f != NotSteady })
			}
			if b := e.Design.Batch; b != nil && b.Rounds > 0 && !slices.ContainsFunc(e.Trials, func(t StudyTrial) bool { return e.counts(t) && t.Values != nil }) {
				e.Design.Batch = nil // interrupted before the first of them: there is what was measured in turn, with what is said of it
			}
			e.testCarry()
			e.analyse(s.MarginPct)
		}
	}
	s.correct()
}

// correctTable gives the comparisons of a family their verdicts among all of them: the chance
// that any of them is called different without being so is at most 5 %, and that any is called equivalent without being
// so is too. Those that are nil are not part of it.
func correctTable(table []*Comparison) {
	var cs []*Comparison
	var differ, equal []float64
	for _, c := range table {
		if c != nil && c.Tests != nil {
			cs, differ, equal = append(cs, c), append(differ, c.P), append(equal, c.PEquiv)
		}
	}
	differ, equal = holm(differ), holm(equal)
	for i, c := range cs {
		c.Corrected = corrected(differ[i], equal[i], c.PenaltyPct)
	}
}

// line is a comparison and what it is called.
type line struct {
	name string
	c    *Comparison
}

// totalsNote names the lines in which all trials together lose something else than a pair as a rule.
func totalsNote(lines []line) string {
	var all []string
	for _, l := range lines {
		if l.c == nil || l.c.Totals == nil || l.c.CI95Pct == nil {
			continue
		}
		if t := l.c.Totals; t.PenaltyPct < l.c.CI95Pct[0] || t.PenaltyPct > l.c.CI95Pct[1] {
			all = append(all, fmt.Sprintf("%s (%s %%)", l.name, signed(t.PenaltyPct)))
		}
	}
	if all == nil {
		return ""
	}
	return "all trials together lose something else than a pair as a rule, outside its 95 % interval: a few trials of one arm decide the sum: " + strings.Join(all, ", ")
}

// correctionNote says which verdicts stand when all lines are one question.
func correctionNote(lines []line) string {
	var fall []string
	n := 0
	for _, l := range lines {
		if l.c == nil || l.c.Tests == nil {
			continue
		}
		n++
		if l.c.Corrected != l.c.Verdict {
			fall = append(fall, fmt.Sprintf("%s (%s alone, %s among all)", l.name, l.c.Verdict, l.c.Corrected))
		}
	}
	switch {
	case n < 2:
		return ""
	case len(fall) == 0:
		return fmt.Sprintf("Corrected for %d lines (Holm, 5 %%), all verdicts stand.", n)
	}
	return fmt.Sprintf("Corrected for %d lines (Holm, 5 %%), these do not stand: %s. The table shows each line alone: of 20 lines without a "+
		"difference one is expected to be called worse or better.", n, strings.Join(fall, "; "))
}
