package result

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"berth/internal/bench/stat"
)

// Carry-over: a trial leaves something behind (dirty pages, groups that the kernel still takes apart, a CPU with a high clock), and this
// changes the next trial. If only one arm does so, the order of a block decides which arm suffers. Then the intervals of package stat
// are wrong: they assume that the order does not matter if the arms do not differ. Therefore each trial records what ran before it, and
// this file tests whether that matters.

// CarryOver says whether trials of an arm differ after another arm from those after the same arm.
type CarryOver struct {
	Arm      string  `json:"arm"` // the reference and the null arm count as one
	Itself   int     `json:"trials_after_itself"`
	Others   int     `json:"trials_after_others"`
	WorsePct float64 `json:"worse_after_others_pct"` // median of the differences between trials of one row, percent; below 0: better
	P        float64 `json:"p"`                      // exact stratified rank-sum test, two-sided
	Adjusted float64 `json:"p_corrected"`            // with Holm's correction over the arms of the experiment
}

// carryAlpha is the level of the test, over all arms of an experiment.
const carryAlpha = 0.05

// Shown reports whether carry-over is shown.
func (c CarryOver) Shown() bool { return c.Adjusted <= carryAlpha }

// carried is a trial as the test sees it.
type carried struct {
	row, kind string
	itself    bool    // the same arm ran before it
	first     bool    // the trial before it was of another row
	value     float64 // logarithm (more is better), without the noise that the whole block has in common
}

// observed is a trial that counts.
type observed struct {
	Head
	session int
	Value   float64 // above 0
}

// carryOver tests each arm; the null arm counts as the reference. Trials after a trial of another row are compared only with each
// other, because a change of the row is no carry-over of the arm. Arms with fewer than three trials on either side are left out.
func carryOver(reference string, trials []observed, lessIsBetter bool) []CarryOver {
	kinds := map[string][]carried{}
	for _, t := range withoutShared(reference, inOrder(trials), lessIsBetter) {
		kinds[t.kind] = append(kinds[t.kind], t)
	}
	var all []CarryOver
	var ps []float64
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		c := CarryOver{Arm: kind}
		strata := map[string][2][]float64{} // after others, after itself
		for _, t := range kinds[kind] {
			at := fmt.Sprintf("%v %s", t.first, t.row)
			s := strata[at]
			if t.itself {
				s[1] = append(s[1], t.value)
				c.Itself++
			} else {
				s[0] = append(s[0], t.value)
				c.Others++
			}
			strata[at] = s
		}
		if min(c.Itself, c.Others) < 3 {
			continue
		}
		var shift float64
		c.P, shift = stat.RankSums(slices.Collect(maps.Values(strata)))
		c.WorsePct = stat.Penalty(shift)
		if lessIsBetter {
			c.WorsePct = stat.Extra(shift)
		}
		all, ps = append(all, c), append(ps, c.P)
	}
	for i, p := range stat.Holm(ps) {
		all[i].Adjusted = p
	}
	return all
}

// withoutShared subtracts from each trial the median of its arm in the row, and what the trials of its block have in common.
func withoutShared(reference string, trials []observed, lessIsBetter bool) []carried {
	kind := func(arm string) string {
		if arm == Null {
			return reference
		}
		return arm
	}
	type place struct{ row, kind string }
	type block struct {
		row            string
		session, round int
	}
	by, shared := map[place][]float64{}, map[block][]float64{}
	ln := func(t observed) float64 {
		if lessIsBetter {
			return -math.Log(t.Value)
		}
		return math.Log(t.Value)
	}
	for _, t := range trials {
		at := place{t.Row, kind(t.Arm)}
		by[at] = append(by[at], ln(t))
	}
	middle := map[place]float64{}
	for at, x := range by {
		middle[at] = stat.MedianOf(x)
	}
	for _, t := range trials {
		at := block{t.Row, t.session, t.Round}
		shared[at] = append(shared[at], ln(t)-middle[place{t.Row, kind(t.Arm)}])
	}
	var all []carried
	for _, t := range trials {
		if t.After == "" {
			continue
		}
		k, common := kind(t.Arm), 0.0
		for _, v := range shared[block{t.Row, t.session, t.Round}] {
			common += v / float64(len(shared[block{t.Row, t.session, t.Round}]))
		}
		all = append(all, carried{row: t.Row, kind: k, itself: kind(t.After) == k, first: t.AfterRow != "", value: ln(t) - middle[place{t.Row, k}] - common})
	}
	return all
}

// CarryNote returns the result in one sentence; "" if nothing could be tested.
func CarryNote(all []CarryOver) string {
	if len(all) == 0 {
		return ""
	}
	var shown []string
	least := 1.0
	for _, c := range all {
		least = min(least, c.Adjusted)
		if c.Shown() {
			word, by := "worse", c.WorsePct
			if by < 0 {
				word, by = "better", -by
			}
			shown = append(shown, fmt.Sprintf("trials of %s are %s %% %s after another arm than after their own like (p = %.1g)", c.Arm, Brief(by), word, c.Adjusted))
		}
	}
	if shown == nil {
		return fmt.Sprintf("Carry-over from one trial to the next: not shown (smallest p = %s, corrected for %d of the arms; it would be at %.2f).", Brief(least), len(all), carryAlpha)
	}
	return "CARRY-OVER: " + strings.Join(shown, "; ") + ". Comparisons of neighbours are then not those of the arms."
}

// inOrder fills in what ran before each trial, by the order of the trials. Some of the kept evidence does not record it.
func inOrder(trials []observed) []observed {
	if slices.ContainsFunc(trials, func(t observed) bool { return t.After != "" }) {
		return trials
	}
	all := slices.SortedStableFunc(slices.Values(trials), func(a, b observed) int { return cmp.Compare(a.Seq, b.Seq) })
	for i := 1; i < len(all); i++ {
		if all[i].Seq == all[i-1].Seq+1 && all[i].session == all[i-1].session {
			all[i].Follows(&all[i-1].Head)
		}
	}
	return all
}

// Brief prints a positive number with the decimals that matter: three digits, all of those before the point.
func Brief(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
