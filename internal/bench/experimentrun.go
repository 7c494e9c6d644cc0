package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/bench/stat"
	"berth/internal/bench/wire"
	"berth/internal/sys/refuse"
)

// experimentRun runs the trials of one experiment in one session. In each round each row has one block, in random
// order. A block has one trial of each arm, in random order. Round 0 is the warm-up; negative rounds are the pilot.
type experimentRun struct {
	*study
	d            bed.Definition
	b            *bed.Bed
	tool         *result.Tool
	session, leg int
	share        time.Duration // of the budget
	began        time.Time

	e         *result.Experiment
	length    time.Duration // of a trial, without its warm-up
	warm      time.Duration // length of the warm-up
	done      map[cell]bool // trials that the journal has
	totalDone int
	soFar     string // see Progress
}

// cell is the place of one trial.
type cell struct {
	row, arm     string
	round, batch int
}

// prepare decides the length of trials and writes down what will be measured, or takes it from the journal.
func (x *experimentRun) prepare(ctx context.Context) error {
	design := result.Design{Published: x.d.Published, Batch: x.d.Batch}
	old := x.Experiment(x.d.Name)
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
	var steady *result.Steady
	if !x.d.Table {
		var err error
		if steady, err = x.b.Settle(ctx, x.share/20); err != nil {
			return fmt.Errorf("bring the disk of %s to its steady state: %w", x.d.Name, err)
		}
	}
	design.Steady = steady
	e := result.Experiment{About: x.d.About, Targets: x.b.Targets, Design: design, Notes: slices.Clone(x.b.Notes)}
	for _, a := range x.b.Arms {
		e.Arms = append(e.Arms, a.Arm)
	}
	for _, r := range x.b.Rows {
		row := r.Row
		if job, ok := r.Job.(bed.DiskRun); ok {
			row.Command = job.Command(x.length, x.warm)
		}
		if steady != nil && !steady.Attained {
			row.Flags = append(slices.Clip(row.Flags), result.NotSteady)
		}
		e.Rows = append(e.Rows, row)
	}
	if err := x.write(e); err != nil {
		return err
	}
	x.done = map[cell]bool{}
	for _, t := range x.e.Trials {
		if t.Session == x.session {
			x.done[cell{t.Row, t.Arm, t.Round, t.Batch}] = true
		}
	}
	return nil
}

// same refuses to go on if the arms or rows differ from those measured before.
func (x *experimentRun) same(old *result.Experiment) error {
	arms := slices.EqualFunc(old.Arms, x.b.Arms, func(a result.Arm, b bed.Arm) bool { return a.Name == b.Name })
	rows := slices.EqualFunc(old.Rows, x.b.Rows, func(a result.Row, b bed.Row) bool { return a.Name == b.Name })
	if !arms || !rows {
		return refuse.Cannotf("begin anew", "%s has other arms or rows than when it began: a program, a disk or a network has changed", x.d.Name)
	}
	return nil
}

// write records the experiment, without its trials, in the study and the journal.
func (x *experimentRun) write(e result.Experiment) error {
	r := experimentRecord{Session: x.session, Tool: x.tool, Experiment: e}
	x.Begin(r.Tool, r.Experiment)
	x.e = x.Experiment(e.Name)
	return x.j.add(record{Experiment: &r})
}

// note adds notes that were not known before the trials.
func (x *experimentRun) note(notes []string) error {
	if len(notes) == 0 {
		return nil
	}
	e := *x.e
	e.Trials, e.Notes = nil, append(slices.Clone(e.Notes), notes...)
	return x.write(e)
}

// run measures all rounds that the journal does not have: the warm-up, the pilot, then the pairs.
func (x *experimentRun) run(ctx context.Context) error {
	if err := x.round(ctx, 0, 1+x.d.Pilot+x.fewest()); err != nil {
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
	if b := x.e.Design.Batch; b == nil || b.Rounds == 0 || x.begunInTurn() {
		for n := 1; n <= x.e.Design.Pairs; n++ {
			if err := x.round(ctx, n, 1+pilot+x.e.Design.Pairs); err != nil {
				return err
			}
		}
	}
	if x.e.Design.Batch == nil {
		if err := x.toBatches(); err != nil {
			return err
		}
	}
	if b := x.e.Design.Batch; b != nil {
		for n := range b.Rounds {
			if err := x.round(ctx, x.e.Design.Pairs+1+n, 1+pilot+x.e.Design.Pairs+b.Rounds*b.Trials); err != nil {
				return err
			}
		}
	}
	return nil
}

// round runs the trials of a round that the journal does not have. It draws the order of all trials, so that a resumed run keeps the
// order.
func (x *experimentRun) round(ctx context.Context, n, rounds int) error {
	order, k := x.order(x.session, x.d.Name, n), x.inBatch(n)
	for _, row := range order.Perm(len(x.b.Rows)) {
		for _, arm := range order.Perm(len(x.b.Arms)) {
			if x.b.Arms[arm].Name == result.Asked {
				continue // it is not measured
			}
			from := min(k, 1)
			if x.b.Arms[arm].Slow {
				from = k
			}
			for batch := from; batch <= k; batch++ {
				if !x.done[cell{x.b.Rows[row].Name, x.b.Arms[arm].Name, n, batch}] {
					x.report(row, arm, rounds)
					if err := x.trial(ctx, n, row, arm, batch); err != nil {
						return err
					}
				}
				x.totalDone++
			}
		}
	}
	x.j.sync()
	return nil
}

// trial runs one trial and writes it down. A trial that fails is written down too; the error is for what ends the
// experiment.
func (x *experimentRun) trial(ctx context.Context, round, row, arm, batch int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r, a := x.b.Rows[row], x.b.Arms[arm]
	if r.Cold {
		if err := side.DropCaches(); err != nil {
			return fmt.Errorf("drop the kernel's caches: %w", err)
		}
	}
	length, warm := x.length, x.warm
	if round == 0 && x.d.Whole {
		length, warm = min(length, wire.CheckRun), 0 // it only has to try everything once
	}
	t := result.Trial{
		Head:  result.Head{Seq: x.next(), Row: r.Name, Round: round, Arm: a.Name, Start: time.Now().UTC()},
		Batch: batch, Session: x.session, Leg: x.leg,
	}
	if n := len(x.e.Trials); n > 0 && x.e.Trials[n-1].Session == x.session && x.e.Trials[n-1].Leg == x.leg {
		t.Follows(&x.e.Trials[n-1].Head)
	}
	w := side.LookAround()
	values, err := r.Job.Measure(ctx, a, length, warm)
	if err == nil {
		err = sane(values)
	}
	t.Conditions = conditionsOf(a, w.End(x.b.Device()))
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

// conditionsOf are the conditions of a trial in an arm. The emulator of a machine is no child of this process, so what a trial in one
// uses of the CPUs cannot be told from what others use: it is left out, and not called others'.
func conditionsOf(a bed.Arm, c result.Conditions) *result.Conditions {
	if a.Name == result.VirtualMachine {
		c.OtherPct = nil
	}
	return &c
}

// sane refuses values that no measurement has, whatever a program printed: JSON has no place for them either.
func sane(values map[string]float64) error {
	for name, v := range values {
		if !(v >= 0) || math.IsInf(v, 0) {
			return fmt.Errorf("the trial measured %s as %v", name, v)
		}
	}
	return nil
}

// broken says whether a failed trial ends the experiment: an arm is broken then, not disturbed.
func (x *experimentRun) broken(err error, round int, row, arm string) error {
	if err == nil {
		return nil
	}
	if x.b.Gone != nil {
		if why := x.b.Gone(); why != nil {
			return why
		}
	}
	if x.countFailures() < bed.Endures && round != 0 {
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
	if x.o.Progress == nil {
		return
	}
	cells := 0
	for _, a := range x.b.Arms {
		inBatch := 1
		if x.d.Batch != nil && !a.Slow {
			inBatch = x.d.Batch.Trials
		}
		cells += inBatch * len(x.b.Rows)
	}
	p := bed.Progress{
		What: x.d.Name + ", " + x.b.Rows[row].Name + " " + x.b.Arms[arm].Name,
		Done: int64(x.totalDone), Total: int64(cells * rounds),
	}
	if n := len(x.e.Trials); n > 0 {
		p.Left = x.e.Wall(x.session) / time.Duration(n) * time.Duration(max(p.Total-p.Done, 0))
	} else {
		p.Left = x.share
	}
	for i, d := range x.defs { // later experiments may use its share
		if !x.hasEnded(x.session, d.Name) && d.Name != x.d.Name {
			p.Left += x.study.share(x.session, i)
		}
	}
	p.Left += time.Duration(x.o.Sessions-x.session) * x.o.Budget
	if x.totalDone%cells == 0 {
		x.soFar = x.verdicts()
	}
	p.SoFar = x.soFar
	x.o.Tell(p)
}

// verdicts counts what the rows' first comparisons with the nodes would be called now: "3 equivalent, 1 undecided".
func (x *experimentRun) verdicts() string {
	e := *x.e
	e.Rows, e.Trials = slices.Clone(e.Rows), slices.Clone(e.Trials)
	e.Analyse(x.o.MarginPct)
	n := map[stat.Verdict]int{}
	for _, r := range e.Rows {
		for _, c := range r.Compared {
			if c.Arm != result.Null && c.Measure == e.Measures[0].Name {
				n[c.Penalty.Verdict]++
			}
		}
	}
	var counts []string
	for _, v := range []stat.Verdict{stat.Worse, stat.Better, stat.Equivalent, stat.Undecided} {
		if n[v] > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n[v], v))
		}
	}
	return strings.Join(counts, ", ")
}
