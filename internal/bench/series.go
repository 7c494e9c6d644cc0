package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// series runs the trials of one report. In every round each row has one block, in random order; a block is one trial of
// each arm, in random order. So a drift of the device hits all rows alike, and within a block all arms.
type series struct {
	o        Options
	arms     []namedArm
	rows     []Row
	target   Target
	rep      *Report
	progress func(Progress)
	start    time.Time
	order    *rand.Rand
	failed   int // trials in a row
}

func (s *series) run(ctx context.Context) error {
	begun := time.Now()
	if err := s.round(ctx, 0); err != nil { // warm-up: not counted, but it shows what a round takes
		return err
	}
	s.rep.Pairs = s.pairs(time.Since(s.start), time.Since(begun))
	for n := 1; n <= s.rep.Pairs; n++ {
		if err := s.round(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// pairs fixes the number of rounds, before any trial that counts: what fits in the budget.
func (s *series) pairs(used, round time.Duration) int {
	if s.o.Pairs > 0 {
		return s.o.Pairs
	}
	return min(max(int((s.o.Budget-used)/round), MinPairs), maxPairs)
}

func (s *series) round(ctx context.Context, n int) error {
	for _, i := range s.order.Perm(len(s.rows)) {
		for _, a := range s.order.Perm(len(s.arms)) {
			if err := s.trial(ctx, n, s.rows[i], s.arms[a]); err != nil {
				return err
			}
		}
	}
	return nil
}

// trial runs fio once. A trial that fails is recorded; the error is for what ends the series.
func (s *series) trial(ctx context.Context, round int, row Row, arm namedArm) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.tell(row, arm)
	t := Trial{Seq: len(s.rep.Trials) + 1, Row: row.Name, Round: round, Arm: arm.name, Start: time.Now().UTC()}
	m, err := s.measure(ctx, row, arm)
	t.WallMS = time.Since(t.Start).Milliseconds()
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // cut short: it measured nothing
	case err == nil:
		t.Measured, s.failed = &m, 0
	default:
		t.Error = err.Error()
		s.failed++
	}
	s.rep.Trials = append(s.rep.Trials, t)
	if err != nil && (round == 0 || s.failed == endures) {
		return fmt.Errorf("measure %s in the arm %s: %w", row.Name, arm.name, err)
	}
	return nil
}

func (s *series) measure(ctx context.Context, row Row, arm namedArm) (Measured, error) {
	// A request that never ends must not hold the run for ever; a slow disk under many threads may take its time.
	ctx, cancel := context.WithTimeout(ctx, s.o.Run+s.o.Warm+time.Minute)
	defer cancel()
	out, err := arm.run(ctx, command(row, s.target, s.o.Run, s.o.Warm))
	if err != nil {
		return Measured{}, err
	}
	return parseFio(out, row.Shape)
}

func (s *series) tell(row Row, arm namedArm) {
	pairs := max(s.rep.Pairs, s.o.Pairs)
	done := int64(len(s.rep.Trials))
	p := Progress{What: row.Name + " " + arm.name, Done: done, Total: int64(len(s.rows)*len(s.arms)) * int64(1+pairs)}
	switch {
	case pairs == 0: // still warming up: the budget is the best guess
		p.Left = max(s.o.Budget-time.Since(s.start), 0)
	case done == 0:
		p.Left = (s.o.Run + s.o.Warm) * time.Duration(p.Total)
	default:
		p.Left = time.Since(s.rep.Trials[0].Start) / time.Duration(done) * time.Duration(p.Total-done)
	}
	s.progress(p)
}
