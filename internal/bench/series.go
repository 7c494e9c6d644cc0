package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// series runs the trials of one report. In every round each row has one block, in random order; a block is one trial of
// each arm, in random order. So a drift of the device hits all rows alike, and within a block all arms.
// M is what a trial measures.
type series[M any] struct {
	rows, arms []string // names
	measure    func(ctx context.Context, round, row, arm int) (*M, error)
	keep       func(Head, *M) // puts a trial into the report

	pairs    int           // rounds; 0: what fits in the budget, fixed after the warm-up round
	budget   time.Duration // from start on
	trial    time.Duration // what one trial takes at least
	start    time.Time
	order    *rand.Rand
	progress func(Progress)

	before *Head     // the last trial
	done   int       // trials
	begun  time.Time // of the first one
	failed int       // trials in a row
}

// Head says what a trial was, whatever it measured.
type Head struct {
	Seq      int       `json:"seq"`   // place in the run, from 1
	Row      string    `json:"row"`   // its name
	Round    int       `json:"round"` // 0 is the warm-up round, which does not count
	Arm      string    `json:"arm"`
	After    string    `json:"after,omitempty"`     // the arm that ran before it; absent: nothing did, or not for a while
	AfterRow string    `json:"after_row,omitempty"` // whose row that was, where it was another one
	Start    time.Time `json:"start"`
	WallMS   int64     `json:"wall_ms"`         // with the start and the end of the command
	Error    string    `json:"error,omitempty"` // then nothing was measured
}

// run measures all rounds, and tells planned how many they are before the first one that counts.
func (s *series[M]) run(ctx context.Context, planned func(pairs int)) error {
	s.begun = time.Now()
	if err := s.round(ctx, 0); err != nil { // warm-up: not counted, but it shows what a round takes
		return err
	}
	if s.pairs == 0 {
		s.pairs = fit(s.budget-time.Since(s.start), time.Since(s.begun))
	}
	planned(s.pairs)
	for n := 1; n <= s.pairs; n++ {
		if err := s.round(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// fit says how many rounds there are time for, within bounds.
func fit(left, round time.Duration) int { return min(max(int(left/round), MinPairs), maxPairs) }

func (s *series[M]) round(ctx context.Context, n int) error {
	for _, row := range s.order.Perm(len(s.rows)) {
		for _, arm := range s.order.Perm(len(s.arms)) {
			if err := s.one(ctx, n, row, arm); err != nil {
				return err
			}
		}
	}
	return nil
}

// one runs one trial. A trial that fails is recorded; the error is for what ends the series.
func (s *series[M]) one(ctx context.Context, round, row, arm int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.tell(row, arm)
	s.done++
	h := Head{Seq: s.done, Row: s.rows[row], Round: round, Arm: s.arms[arm], Start: time.Now().UTC()}
	if s.before != nil {
		h.follows(s.before)
	}
	s.before = &h
	m, err := s.measure(ctx, round, row, arm)
	h.WallMS = time.Since(h.Start).Milliseconds()
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // cut short: it measured nothing
	case err == nil:
		s.failed = 0
	default:
		m, h.Error = nil, err.Error()
		s.failed++
	}
	s.keep(h, m)
	if err != nil && (round == 0 || s.failed == endures) {
		return fmt.Errorf("measure %s in the arm %s: %w", h.Row, h.Arm, err)
	}
	return nil
}

func (s *series[M]) tell(row, arm int) {
	p := Progress{
		What: s.rows[row] + " " + s.arms[arm], Done: int64(s.done),
		Total: int64(len(s.rows)*len(s.arms)) * int64(1+s.pairs),
	}
	switch {
	case s.pairs == 0: // still warming up: the budget is the best guess
		p.Left = max(s.budget-time.Since(s.start), 0)
	case s.done == 0:
		p.Left = s.trial * time.Duration(p.Total)
	default:
		p.Left = time.Since(s.begun) / time.Duration(s.done) * time.Duration(p.Total-p.Done)
	}
	s.progress(p)
}
