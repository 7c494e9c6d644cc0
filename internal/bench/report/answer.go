package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/internal/sys/text"
)

// Answer sums up the whole run in plain words.
type Answer struct {
	Status   string // the first line: what a reader must know before any figure
	Alarm    bool   // Status is bad news
	Headline string
	Groups   []Group // one per verdict that occurs, in the order of verdicts
	Noise    string  // how much the host differs from itself
	Power    string  // which margins the run could have decided
	Skipped  []string
}

// Group holds the comparisons with one verdict.
type Group struct {
	Verdict stat.Verdict
	Meaning string
	Count   int
	Items   []string // the largest differences, and how many more there are
}

// verdicts is the order in which the groups are shown.
var verdicts = [...]stat.Verdict{stat.Worse, stat.Better, stat.Undecided, stat.Equivalent}

// Answer judges each row by its first measure.
func (r *Report) Answer() Answer {
	a := Answer{}
	a.Status, a.Alarm = r.status()
	var main []line
	for i := range r.Study.Experiments {
		e := &r.Study.Experiments[i]
		if e.Skipped != "" {
			a.Skipped = append(a.Skipped, e.Name+": "+e.Skipped)
		}
		for _, l := range lines(e) {
			if l.main {
				main = append(main, l)
			}
		}
	}
	by := map[stat.Verdict][]line{}
	for _, l := range main {
		by[verdict(l.c)] = append(by[verdict(l.c)], l)
	}
	a.Headline = headline(by, main, r.Study.MarginPct)
	for _, v := range verdicts {
		if len(by[v]) > 0 {
			a.Groups = append(a.Groups, r.group(v, by[v]))
		}
	}
	a.Noise, a.Power = noise(main), power(main)
	return a
}

// The largest number of comparisons listed per verdict, so that the summary fits on one page.
const (
	mostWorse = 12
	mostItems = 6
)

// group lists the comparisons of one verdict, the largest differences first; those of an emulated CPU, which say nothing of a cost, come last.
func (r *Report) group(v stat.Verdict, all []line) Group {
	g := Group{Verdict: v, Meaning: meaning(v, r.Study.MarginPct), Count: len(all)}
	slices.SortStableFunc(all, func(a, b line) int {
		return cmp.Or(rank(a)-rank(b), cmp.Compare(math.Abs(b.c.Penalty.PenaltyPct), math.Abs(a.c.Penalty.PenaltyPct)))
	})
	most := mostItems
	if v == stat.Worse {
		most = mostWorse
	}
	for _, l := range all[:min(len(all), most)] {
		g.Items = append(g.Items, r.item(l))
	}
	if n := len(all) - most; n > 0 {
		g.Items = append(g.Items, fmt.Sprintf("and %d more with smaller differences: see the tables", n))
	}
	return g
}

// rank is 1 for a comparison of an arm whose CPU is emulated, else 0.
func rank(l line) int {
	if emulated(l.exp, l.arm) != "" || slices.Contains(l.row.Flags, result.EmulatedCPU) {
		return 1
	}
	return 0
}

// status returns the first line of every form of the report.
func (r *Report) status() (said string, alarm bool) {
	var s []string
	if emulated, by := r.emulatedArms(); emulated {
		if by != "" {
			by = " (" + by + ")"
		}
		s = append(s, "MACHINES SHOW FUNCTION, NOT COST: their CPU is emulated"+by+", which is many times slower than the host's.")
	}
	if r.Study.Partial {
		s = append(s, "PARTIAL: the run ended early, with fewer pairs than planned.")
	}
	if r.Study.Emulated != "" {
		s = append(s, "EMULATED ("+r.Study.Emulated+"): these speeds are not those of real hardware.")
	}
	rows, marked, trials, seen := 0, 0, 0, 0
	for i := range r.Study.Experiments {
		for _, t := range r.Study.Experiments[i].Trials {
			if t.Conditions != nil && t.Conditions.OtherPct != nil {
				trials++
			}
			if len(t.Disturbed) > 0 {
				seen++
			}
		}
		for _, row := range r.Study.Experiments[i].Rows {
			rows++
			if slices.Contains(row.Flags, result.Disturbed) {
				marked++
			}
		}
	}
	if marked > 0 {
		said := fmt.Sprintf("DISTURBED: in %d of %s more than a tenth of the trials are outliers", marked, text.Count(rows, "row"))
		if trials > 0 { // some documents do not record what else ran during the trials
			said += fmt.Sprintf("; something else was seen to use the machine in %d of %s that can tell", seen, text.Count(trials, "trial"))
		}
		s = append(s, said+".")
	}
	if len(s) == 0 {
		return fmt.Sprintf("Complete: %s measured, none disturbed.", text.Count(rows, "row")), false
	}
	return strings.Join(s, " "), true
}

// emulatedArms says whether arms have an emulated CPU, where their reference has a real one, and what emulates it; a comparison of two
// runs does not say by what.
func (r *Report) emulatedArms() (emulated bool, by string) {
	for i := range r.Study.Experiments {
		e := &r.Study.Experiments[i]
		for _, a := range e.Arms {
			if a.Emulated != "" {
				return true, a.Emulated
			}
		}
		emulated = emulated || len(flagged(e, string(result.EmulatedCPU))) > 0
	}
	return emulated, ""
}

func headline(by map[stat.Verdict][]line, main []line, margin float64) string {
	if len(main) == 0 {
		return "Nothing was measured that could be compared."
	}
	who := "with " + references(main)
	if !slices.ContainsFunc(main, func(l line) bool { return l.arm != nullArm }) {
		who = "of " + references(main) + " with itself (no node was measured)"
	}
	var said, none []string
	for _, v := range []stat.Verdict{stat.Equivalent, stat.Worse, stat.Better, stat.Undecided} {
		if n := len(by[v]); n > 0 {
			said = append(said, fmt.Sprintf("%d %s", n, v))
		} else {
			none = append(none, "none "+string(v))
		}
	}
	s := fmt.Sprintf("%s %s at a margin of %s %%: %s", text.Count(len(main), "comparison"), who, percent(margin), strings.Join(said, ", "))
	if len(none) > 0 {
		s += "; " + strings.Join(none, ", ")
	}
	n := 0
	for _, l := range main {
		n += rank(l)
	}
	if n > 0 {
		s += fmt.Sprintf(". %d of them are of an emulated CPU", n)
	}
	return s + "." + oneByOne(main)
}

// oneByOne gives the verdicts without the correction for multiple comparisons; "" if they are the same.
func oneByOne(main []line) string {
	alone, other := map[stat.Verdict]int{}, false
	for _, l := range main {
		alone[l.c.Penalty.Verdict]++
		other = other || l.c.Penalty.Verdict != verdict(l.c)
	}
	if !other {
		return ""
	}
	var said []string
	for _, v := range []stat.Verdict{stat.Equivalent, stat.Worse, stat.Better, stat.Undecided} {
		if alone[v] > 0 {
			said = append(said, fmt.Sprintf("%d %s", alone[v], v))
		}
	}
	return fmt.Sprintf(" That is corrected for all %d together (at most one page in 20 without a difference has a false call); one by one: %s.", len(main), strings.Join(said, ", "))
}

// against names the references of all experiments of a study.
func against(s *result.Study) string {
	var all []line
	for i := range s.Experiments {
		all = append(all, lines(&s.Experiments[i])...)
	}
	return references(all)
}

// references names the arms that the others are compared with: usually the host.
func references(main []line) string {
	var all []string
	for _, l := range main {
		if r := the(l.exp); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	if n := len(all) - 1; n > 1 {
		return strings.Join(all[:n], ", ") + " or " + all[n]
	}
	return strings.Join(all, " or ")
}

func meaning(v stat.Verdict, margin float64) string {
	switch v {
	case stat.Worse:
		return "a loss is shown (95 % confidence), and it is not shown to be smaller than the margin"
	case stat.Better:
		return "a gain is shown (95 % confidence), and it is not shown to be smaller than the margin"
	case stat.Equivalent:
		return fmt.Sprintf("whatever difference there may be is shown to be smaller than %s %%", percent(margin))
	}
	return "this run cannot tell, which is not the same as “no difference”"
}

func (r *Report) item(l line) string {
	name := l.row.Name
	if len(r.Study.Experiments) > 1 {
		name = l.exp.Name + ": " + name
	}
	if len(compared(l.exp)) > 1 {
		name += ", " + l.arm
	}
	p := l.c.Penalty
	text := fmt.Sprintf("%s: %s %% in %s", name, signed(p.PenaltyPct), l.measure.Title)
	if p.CI95Pct == nil {
		return text + " (too few pairs)"
	}
	text += " (95 %: " + interval(p) + ")"
	if verdict(l.c) != p.Verdict {
		text += ", by itself " + string(p.Verdict)
	}
	if p.Verdict == stat.Undecided && p.Could != nil {
		text += fmt.Sprintf("; %s %% could have been decided", figure(*p.Could))
	}
	return text
}

// noise describes the noise floor: the reference against itself, once for each row.
func noise(main []line) string {
	var worst float64
	n, calls := 0, 0
	seen := map[*result.Row]bool{}
	var twice []line
	for _, l := range main {
		if l.null == nil || seen[l.row] {
			continue
		}
		seen[l.row] = true
		twice = append(twice, l)
		n++
		worst = max(worst, math.Abs(l.null.Penalty.PenaltyPct))
		if v := l.null.Penalty.Verdict; v == stat.Worse || v == stat.Better {
			calls++
		}
	}
	if n == 0 {
		return "There was no null arm: nothing says how large the noise is."
	}
	return fmt.Sprintf("Noise floor: "+references(twice)+" measured a second time differs from itself by up to %s %%; %d of %s were called worse or better "+
		"(by chance alone, at most 1 in 20 is to be expected).", figure(worst), calls, text.Count(n, "such row"))
}

// power says which margins the run could have decided.
func power(main []line) string {
	var could []float64
	none := 0
	for _, l := range main {
		if l.c.Penalty.Could == nil {
			none++
		} else {
			could = append(could, *l.c.Penalty.Could)
		}
	}
	if len(could) == 0 {
		return "There are too few pairs to decide anything: six are needed for a 95 % interval."
	}
	slices.Sort(could)
	said := fmt.Sprintf("What could have been decided with this noise and number of pairs: margins down to %s %% in the quietest row, "+
		"%s %% in the middle one, %s %% in the noisiest.", figure(could[0]), figure(could[len(could)/2]), figure(could[len(could)-1]))
	if none > 0 {
		said += " " + text.Count(none, "comparison") + " had too few pairs to decide anything."
	}
	return said
}
