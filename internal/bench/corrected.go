package bench

import (
	"fmt"
	"strings"
)

// Tests are the p-values of a comparison and its verdict among all of its table.
type Tests struct {
	P         float64 `json:"p_differs"`         // two-sided signed-rank test of no difference
	PEquiv    float64 `json:"p_equivalent"`      // the larger of the two one-sided tests against the margin
	Corrected Verdict `json:"verdict_corrected"` // with Holm's correction over the rows of the table
}

// tested adds the p-values; d is what was judged. c may be nil.
func (c *Comparison) tested(d []float64, marginPct float64) *Comparison {
	if c != nil {
		c.Tests = &Tests{P: differs(d), PEquiv: notEquivalent(d, logMargin(marginPct)), Corrected: Undecided}
	}
	return c
}

// correctTable gives the comparisons of a table, one arm and one measure, their verdicts among all of them: the chance
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
