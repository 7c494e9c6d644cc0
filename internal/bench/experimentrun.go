package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth/internal/refuse"
)

// experimentRun runs the trials of one experiment in one session. In every round each row has one block, in random
// order; a block is one trial of each arm, in random order. Round 0 warms up, rounds below it are the pilot.
type experimentRun struct {
	*study
	d            definition
	b            *bed
	tool         *Tool
	session, leg int
	share        time.Duration // of the budget
	began        time.Time

	e         *Experiment
	length    time.Duration // of a trial, without …
	warm      time.Duration // … its warm-up
	done      map[cell]bool // trials that the journal has
	totalDone int
	soFar     string // see Progress
}

// cell is the place of one trial.
type cell struct {
	row, arm string
	round    int
}

// prepare decides the length of trials and writes down what will be measured, or takes it from the journal.
func (x *experimentRun) prepare(ctx context.Context) error {
	design := Design{Published: x.d.published}
	old := x.experiment(x.d.Name)
	switch {
	case old != nil && len(old.Arms) > 0: // resumed, or a later session: as it was
		design = old.Design
		x.length, x.warm = time.Duration(design.RunMillis)*time.Millisecond, time.Duration(design.WarmMillis)*time.Millisecond
		if err := x.same(old); err != nil {
			return err
		}
	default:
		if err := x.lengths(&design); err != nil {
			return err
		}
	}
	steady, err := x.b.settle(ctx, x.share/20)
	if err != nil {
		return fmt.Errorf("bring the disk of %s to its steady state: %w", x.d.Name, err)
	}
	design.Steady = steady
	e := Experiment{About: x.d.About, Targets: x.b.targets, Design: design, Notes: slices.Clone(x.b.notes)}
	for _, a := range x.b.arms {
		e.Arms = append(e.Arms, a.ArmInfo)
	}
	for _, r := range x.b.rows {
		row := r.StudyRow
		if job, ok := r.job.(diskRun); ok {
			row.Command = job.command(x.length, x.warm)
		}
		if steady != nil && !steady.Attained {
			row.Flags = append(slices.Clip(row.Flags), NotSteady)
		}
		e.Rows = append(e.Rows, row)
	}
	if err := x.write(e); err != nil {
		return err
	}
	x.done = map[cell]bool{}
	for _, t := range x.e.Trials {
		if t.Session == x.session {
			x.done[cell{t.Row, t.Arm, t.Round}] = true
		}
	}
	return nil
}

// same refuses to go on where arms or rows are not those that were measured before.
func (x *experimentRun) same(old *Experiment) error {
	arms := slices.EqualFunc(old.Arms, x.b.arms, func(a ArmInfo, b bedArm) bool { return a.Name == b.Name })
	rows := slices.EqualFunc(old.Rows, x.b.rows, func(a StudyRow, b bedRow) bool { return a.Name == b.Name })
	if !arms || !rows {
		return refuse.Cannotf("begin anew", "%s has other arms or rows than when it began: a program, a disk or a network has changed", x.d.Name)
	}
	return nil
}

// lengths shortens trials until a pilot and about 20 pairs fit into the share; it refuses where not even the shortest
// trials of the fewest pairs do.
func (x *experimentRun) lengths(design *Design) error {
	cells := time.Duration(len(x.b.rows) * len(x.b.arms))
	rounds := time.Duration(x.o.fewestRounds())
	if least := x.d.cost(&x.o) * rounds; least > x.share+x.share/2 {
		return refuse.Cannotf("give a larger --budget", "its share of the time, %v, is too small for %s: the shortest trials of %d rows in %d arms, %d times, take %v",
			x.share.Round(time.Second), x.d.Name, len(x.b.rows), len(x.b.arms), rounds, least.Round(time.Second))
	}
	aim := 1 + x.d.pilot + 20
	if x.o.Pairs > 0 {
		aim = 1 + x.o.Pairs
	}
	full := x.d.run + x.d.warm
	beside := max(x.d.cost(&x.o)/cells-x.d.least, 0)
	total := min(max(x.share/cells/time.Duration(aim)-beside, x.d.least), max(full, x.d.least))
	if full > 0 {
		x.warm = time.Duration(float64(total) * float64(x.d.warm) / float64(full)).Truncate(time.Millisecond)
		x.length = total - x.warm
	}
	if x.d.whole {
		if x.d.warm > 0 {
			x.warm = max(x.warm.Truncate(time.Second), time.Second)
		}
		x.length = max((total - x.warm).Truncate(time.Second), time.Second)
	}
	x.length = x.length.Truncate(time.Millisecond)
	design.RunMillis, design.WarmMillis = x.length.Milliseconds(), x.warm.Milliseconds()
	return nil
}

// write puts what is known about the experiment into the study and the journal.
func (x *experimentRun) write(e Experiment) error {
	r := experimentRecord{Session: x.session, Tool: x.tool, Experiment: e}
	x.begin(r)
	x.e = x.experiment(e.Name)
	return x.j.add(record{Experiment: &r})
}

// run measures all rounds that the journal does not have: the warm-up, the pilot, then the pairs.
func (x *experimentRun) run(ctx context.Context) error {
	if err := x.round(ctx, 0, 1+x.d.pilot+x.fewest()); err != nil {
		return err
	}
	pilot := x.pilot()
	for n := range pilot {
		if err := x.round(ctx, n-pilot, 1+pilot+x.fewest()); err != nil {
			return err
		}
	}
	if x.e.Design.Pairs == 0 {
		if err := x.fix(pilot); err != nil {
			return err
		}
	}
	for n := 1; n <= x.e.Design.Pairs; n++ {
		if err := x.round(ctx, n, 1+pilot+x.e.Design.Pairs); err != nil {
			return err
		}
	}
	return nil
}

// pilot is how many rounds of it there are: none where the number of pairs is given, was fixed before, or where a pilot
// would take the time of the fewest pairs.
func (x *experimentRun) pilot() int {
	begun := slices.ContainsFunc(x.e.Trials, func(t StudyTrial) bool { return t.Session == x.session && t.Round < 0 })
	switch {
	case x.o.Pairs > 0 || x.e.Design.Pairs > 0:
		return 0
	case begun:
		return x.d.pilot
	case x.left() < time.Duration(x.d.pilot+x.fewest())*x.roundTime():
		return 0
	}
	return x.d.pilot
}

// fewest is the smallest number of pairs by which a row of this table can be called worse or better after Holm's
// correction: the smallest p-value of n pairs is 2/2ⁿ, and the correction multiplies it by the number of rows.
func (x *experimentRun) fewest() int {
	return max(MinPairs, int(math.Ceil(math.Log2(float64(2*len(x.b.rows))/0.05))))
}

// left is what is left of the share. After a resumption only the trials tell what was used.
func (x *experimentRun) left() time.Duration {
	if len(x.done) > 0 {
		return x.share - x.e.wall(x.session)
	}
	return x.share - time.Since(x.began)
}

// fix decides the number of pairs, before the first one is measured: what the pilot asks for, within the time left.
func (x *experimentRun) fix(pilot int) error {
	e := *x.e
	e.Trials = nil
	d := &e.Design
	d.PilotPairs = pilot
	round := x.roundTime()
	fits := min(max(int(x.left()/max(round, time.Millisecond)), MinPairs), mostStudyPairs)
	d.Pairs = fits
	if x.o.Pairs > 0 {
		d.Pairs = x.o.Pairs
	} else if pilot > 0 {
		d.WantedPairs = max(x.wanted(), x.fewest())
		d.Pairs = min(d.WantedPairs, fits)
	}
	if pilot == 0 && x.d.pilot > 0 && x.o.Pairs == 0 {
		d.Short = true
		e.Notes = append(e.Notes, fmt.Sprintf("there was no time for a pilot: %d pairs are what fits", d.Pairs))
	}
	if d.Pairs < x.fewest() {
		e.Notes = append(e.Notes, fmt.Sprintf("no row can be called worse or better after the correction for %d rows: that takes %d pairs, there are %d",
			len(x.b.rows), x.fewest(), d.Pairs))
	}
	if pilot == 0 {
		return x.write(e)
	}
	d.CouldPct = x.could(d.Pairs)
	if d.Short = d.WantedPairs > d.Pairs; d.Short {
		e.Notes = append(e.Notes, fmt.Sprintf("the budget is too small to decide a margin of %s %% for every row: %d pairs would, %d fit. They decide %s %% by the pilot",
			short(x.o.MarginPct), d.WantedPairs, d.Pairs, short(d.CouldPct)))
	}
	return x.write(e)
}

// roundTime is how long the last round took.
func (x *experimentRun) roundTime() time.Duration {
	by := map[int]int64{}
	for _, t := range x.e.Trials {
		if t.Session == x.session && t.Round <= 0 {
			by[t.Round] += t.WallMS
		}
	}
	last := int64(0)
	for round, ms := range by {
		if round < 0 || len(by) == 1 {
			last = max(last, ms)
		}
	}
	return time.Duration(last) * time.Millisecond
}

// spreads returns the pilot's log ratios of each row by its first measure, those of each arm about their own mean.
func (x *experimentRun) spreads() [][]float64 {
	var all [][]float64
	for _, r := range x.e.Rows {
		by, _ := x.e.byArm(r.Name, func(t StudyTrial) bool { return t.Round < 0 && t.Session == x.session })
		for _, m := range x.e.Measures {
			var pooled []float64
			for _, a := range x.e.Arms[1:] {
				if d, _ := m.ratios(by[x.e.Arms[0].Name], by[a.Name]); len(d) > 1 {
					pooled = append(pooled, centred(d)...)
				}
			}
			if pooled != nil && m.Compared {
				all = append(all, pooled)
				break
			}
		}
	}
	return all
}

// centred moves the mean to 0, and stretches what is left so that its spread is estimated without a bias.
func centred(d []float64) []float64 {
	mean, n := 0.0, float64(len(d))
	for _, v := range d {
		mean += v / n
	}
	c := make([]float64, len(d))
	for i, v := range d {
		c[i] = (v - mean) * math.Sqrt(n/(n-1))
	}
	return c
}

// wanted is the number of pairs by which every row decides the margin; 0: the pilot cannot tell.
func (x *experimentRun) wanted() int {
	most := 0
	for _, d := range x.spreads() {
		if n, ok := PairsNeeded(d, x.o.MarginPct); ok {
			most = max(most, n)
		}
	}
	return most
}

// could is the margin that so many pairs decide in every row; 0: the pilot cannot tell.
func (x *experimentRun) could(pairs int) float64 {
	most := 0.0
	for _, d := range x.spreads() {
		if m, ok := MarginFor(d, pairs); ok {
			most = max(most, m)
		}
	}
	return most
}

// round runs the trials of a round that the journal does not have. All of them are drawn, so that those that are left
// come in the order in which they would have come.
func (x *experimentRun) round(ctx context.Context, n, rounds int) error {
	order := x.order(x.session, x.d.Name, n)
	for _, row := range order.Perm(len(x.b.rows)) {
		for _, arm := range order.Perm(len(x.b.arms)) {
			if x.done[cell{x.b.rows[row].Name, x.b.arms[arm].Name, n}] {
				x.totalDone++
				continue
			}
			x.report(row, arm, rounds)
			if err := x.trial(ctx, n, row, arm); err != nil {
				return err
			}
			x.totalDone++
		}
	}
	x.j.sync()
	return nil
}

// trial runs one trial and writes it down. A trial that fails is written down too; the error is for what ends the
// experiment.
func (x *experimentRun) trial(ctx context.Context, round, row, arm int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r, a := x.b.rows[row], x.b.arms[arm]
	if r.cold {
		if err := dropCaches(); err != nil {
			return fmt.Errorf("drop the kernel's caches: %w", err)
		}
	}
	length, warm := x.length, x.warm
	if round == 0 && x.d.whole {
		length, warm = min(length, checkRun), 0 // it only has to try everything once
	}
	t := StudyTrial{
		Head:    Head{Seq: x.next(), Row: r.Name, Round: round, Arm: a.Name, Start: time.Now().UTC()},
		Session: x.session, Leg: x.leg,
	}
	w := lookAround()
	values, err := r.job.measure(ctx, a, length, warm)
	t.Conditions = w.end(x.b.device())
	t.WallMS = time.Since(t.Start).Milliseconds()
	if ctx.Err() != nil {
		return ctx.Err() // cut short: it measured nothing
	}
	if t.Values = values; err != nil {
		t.Values, t.Error = nil, err.Error()
	}
	x.e.Trials = append(x.e.Trials, t)
	if err := x.j.add(record{Trial: &trialRecord{x.d.Name, t}}); err != nil {
		return err
	}
	return x.broken(err, round, r.Name, a.Name)
}

// broken says whether a failed trial ends the experiment: an arm is broken then, not disturbed.
func (x *experimentRun) broken(err error, round int, row, arm string) error {
	if err == nil {
		return nil
	}
	if x.b.gone != nil {
		if why := x.b.gone(); why != nil {
			return why
		}
	}
	if x.countFailures() < endures && round != 0 {
		return nil
	}
	return fmt.Errorf("measure %s, %s, in the arm %s: %w", x.d.Name, row, arm, err)
}

// countFailures is how many trials failed in a row, those before a resumption too.
func (x *experimentRun) countFailures() int {
	n := 0
	for _, t := range slices.Backward(x.e.Trials) {
		if t.Error == "" {
			break
		}
		n++
	}
	return n
}

// next is the number of the next trial in the study.
func (x *experimentRun) next() int {
	n := 1
	for _, e := range x.Experiments {
		n += len(e.Trials)
	}
	return n
}

// report tells how far the run is, and what the rows look like so far; it changes nothing.
func (x *experimentRun) report(row, arm, rounds int) {
	if x.o.progress == nil {
		return
	}
	cells := len(x.b.rows) * len(x.b.arms)
	p := Progress{
		What: x.d.Name + ", " + x.b.rows[row].Name + " " + x.b.arms[arm].Name,
		Done: int64(x.totalDone), Total: int64(cells * rounds),
	}
	if n := len(x.e.Trials); n > 0 {
		p.Left = x.e.wall(x.session) / time.Duration(n) * time.Duration(max(p.Total-p.Done, 0))
	} else {
		p.Left = x.share
	}
	for i, d := range x.defs { // what comes after it may use its share
		if !x.hasEnded(x.session, d.Name) && d.Name != x.d.Name {
			p.Left += x.study.share(x.session, i)
		}
	}
	p.Left += time.Duration(x.o.Sessions-x.session) * x.o.Budget
	if x.totalDone%cells == 0 {
		x.soFar = x.verdicts()
	}
	p.SoFar = x.soFar
	x.o.tell(p)
}

// verdicts counts what the rows' first comparisons with the nodes would be called now: "3 equivalent, 1 undecided".
func (x *experimentRun) verdicts() string {
	e := *x.e
	e.Rows, e.Trials = slices.Clone(e.Rows), slices.Clone(e.Trials)
	e.analyse(x.o.MarginPct)
	n := map[Verdict]int{}
	for _, r := range e.Rows {
		for _, c := range r.Compared {
			if c.Arm != nullArm && c.Measure == e.Measures[0].Name {
				n[c.Penalty.Verdict]++
			}
		}
	}
	text := ""
	for _, v := range []Verdict{Worse, Better, Equivalent, Undecided} {
		if n[v] > 0 {
			text += fmt.Sprintf(", %d %s", n[v], v)
		}
	}
	return strings.TrimPrefix(text, ", ")
}
