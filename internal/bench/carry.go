package bench

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Carry-over: what a trial leaves behind (dirty pages, groups that the kernel is still taking apart, a CPU that is clocked up) changes
// the next one. If only one arm does so, the order of a block decides who suffers, and swapping two arms that do not differ no
// longer leaves all as it was: the argument of stats.go is broken. So each trial records what ran before it, and here is looked
// whether that matters.

// CarryOver says whether trials of an arm are different after another arm than after its own like.
type CarryOver struct {
	Arm      string  `json:"arm"` // the reference and its second time are one
	Itself   int     `json:"trials_after_itself"`
	Others   int     `json:"trials_after_others"`
	WorsePct float64 `json:"worse_after_others_pct"` // median of the differences between trials of one row, percent; below 0: better
	P        float64 `json:"p"`                      // exact stratified rank-sum test, two-sided
	Adjusted float64 `json:"p_corrected"`            // with Holm's correction over the arms of the experiment
}

// carryAlpha is the level of the test, over all arms of an experiment.
const carryAlpha = 0.05

// shown says whether it is shown that something is carried over.
func (c CarryOver) shown() bool { return c.Adjusted <= carryAlpha }

// carried is a trial as the test sees it.
type carried struct {
	row, kind string
	itself    bool    // its own like ran before it
	first     bool    // what ran before it was of another row
	value     float64 // ln, more being better; the noise that the block shares taken off
}

// observed is a trial that counts.
type observed struct {
	Head
	session int
	value   float64 // above 0
}

// carryOver tests each arm; null is the reference a second time. Trials that follow one of another row are compared among themselves: a change of the row is no
// carry-over of the arm. It says nothing of arms with fewer than three trials on either side.
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
		c.P, shift = rankSums(slices.Collect(maps.Values(strata)))
		c.WorsePct = penalty(shift)
		if lessIsBetter {
			c.WorsePct = extra(shift)
		}
		all, ps = append(all, c), append(ps, c.P)
	}
	for i, p := range holm(ps) {
		all[i].Adjusted = p
	}
	return all
}

// withoutShared takes what a block has in common off its trials: each arm's about its own median in the row.
func withoutShared(reference string, trials []observed, lessIsBetter bool) []carried {
	kind := func(arm string) string {
		if arm == nullArm {
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
			return -math.Log(t.value)
		}
		return math.Log(t.value)
	}
	for _, t := range trials {
		at := place{t.Row, kind(t.Arm)}
		by[at] = append(by[at], ln(t))
	}
	middle := map[place]float64{}
	for at, x := range by {
		middle[at] = MedianOf(x)
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

// rankSums is the two-sided p-value of "what is in the first group of a stratum is as what is in its second", and the median of the
// differences between the two. The statistic is the sum of the strata's Mann–Whitney counts; where the order was drawn at random its
// distribution is the convolution of theirs (Mann and Whitney 1947; strata: van Elteren 1960, with equal weights). Equal values count for
// neither side. Above exactPairs comparisons it is normal.
func rankSums(strata [][2][]float64) (p, shift float64) {
	var differences []float64
	more, less, pairs, mean, variance := 0, 0, 0, 0.0, 0.0
	for _, s := range strata {
		for _, a := range s[0] {
			for _, b := range s[1] {
				differences = append(differences, a-b)
				count(&more, tied(a-b) > 0)
				count(&less, tied(a-b) < 0)
			}
		}
		m, n := float64(len(s[0])), float64(len(s[1]))
		pairs += len(s[0]) * len(s[1])
		mean, variance = mean+m*n/2, variance+m*n*(m+n+1)/12
	}
	if pairs == 0 {
		return 1, 0
	}
	shift = MedianOf(differences)
	u := max(more, less) // at least so many, on one side
	if pairs > exactPairs {
		return min(1, math.Erfc((float64(u)-.5-mean)/math.Sqrt(2*variance))), shift
	}
	q := []float64{1}
	for _, s := range strata {
		q = convolve(q, mannWhitney(len(s[0]), len(s[1])))
	}
	for _, v := range slices.Backward(q[u:]) {
		p += v
	}
	return min(1, 2*p), shift
}

const exactPairs = 4000

// mannWhitney returns P(U = u) for u = 0 … m·n of samples of m and n: the largest of all is of the first with probability m/(m+n), and
// lies above all n then.
func mannWhitney(m, n int) []float64 {
	rows := make([][]float64, n+1) // of m' so far, by n'
	for j := range rows {
		rows[j] = []float64{1}
	}
	for i := 1; i <= m; i++ {
		next := make([][]float64, n+1)
		next[0] = []float64{1}
		for j := 1; j <= n; j++ {
			q := make([]float64, i*j+1)
			mine, theirs := float64(i)/float64(i+j), float64(j)/float64(i+j)
			for u, v := range rows[j] {
				q[u+j] += mine * v
			}
			for u, v := range next[j-1] {
				q[u] += theirs * v
			}
			next[j] = q
		}
		rows = next
	}
	return rows[n]
}

func convolve(a, b []float64) []float64 {
	c := make([]float64, len(a)+len(b)-1)
	for i, x := range a {
		for j, y := range b {
			c[i+j] += x * y
		}
	}
	return c
}

// CarryNote says in a sentence what was found; "" where nothing could be tested.
func CarryNote(all []CarryOver) string {
	if len(all) == 0 {
		return ""
	}
	var shown []string
	least := 1.0
	for _, c := range all {
		least = min(least, c.Adjusted)
		if c.shown() {
			word, by := "worse", c.WorsePct
			if by < 0 {
				word, by = "better", -by
			}
			shown = append(shown, fmt.Sprintf("trials of %s are %s %% %s after another arm than after their own like (p = %.1g)", c.Arm, short(by), word, c.Adjusted))
		}
	}
	if shown == nil {
		return fmt.Sprintf("Carry-over from one trial to the next: not shown (smallest p = %s, corrected for %d of the arms; it would be at %.2f).", short(least), len(all), carryAlpha)
	}
	return "CARRY-OVER: " + strings.Join(shown, "; ") + ". Comparisons of neighbours are then not those of the arms."
}

// inOrder fills in what ran before each trial, where a document does not tell it: by the order of trials.
func inOrder(trials []observed) []observed {
	if slices.ContainsFunc(trials, func(t observed) bool { return t.After != "" }) {
		return trials
	}
	all := slices.SortedStableFunc(slices.Values(trials), func(a, b observed) int { return cmp.Compare(a.Seq, b.Seq) })
	for i := 1; i < len(all); i++ {
		if all[i].Seq == all[i-1].Seq+1 && all[i].session == all[i-1].session {
			all[i].follows(&all[i-1].Head)
		}
	}
	return all
}

// follows notes what ran before it.
func (h *Head) follows(before *Head) {
	h.After, h.AfterRow = before.Arm, ""
	if before.Row != h.Row {
		h.AfterRow = before.Row
	}
}

// seen are the trials of a series that count, with a number of each; those without one are left out.
func seen[T any](trials []T, number func(T) (Head, float64)) []observed {
	var all []observed
	for _, t := range trials {
		if h, v := number(t); h.Round > 0 && h.Error == "" && v > 0 {
			all = append(all, observed{Head: h, value: v})
		}
	}
	return all
}

// ofDisk tests the trials of fio.
func ofDisk(trials []Trial) []CarryOver {
	return carryOver(hostArm, seen(trials, func(t Trial) (Head, float64) {
		if t.Measured == nil {
			return t.Head, 0
		}
		return t.Head, t.IOPS
	}), false)
}
