package bench

import (
	"slices"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
)

// begunInTurn says whether the session has trials that count and were made in turn: it was resumed after them.
func (x *experimentRun) begunInTurn() bool {
	return slices.ContainsFunc(x.e.Trials, func(t result.Trial) bool { return t.Session == x.session && t.Round > 0 && t.Batch == 0 })
}

// inBatch is how many trials of an arm come in a row in a round; 0: one, in turn with the others.
func (x *experimentRun) inBatch(round int) int {
	if b := x.e.Design.Batch; b != nil && (b.Rounds == 0 || round > x.e.Design.Pairs) {
		return b.Trials
	}
	return 0
}

// toBatches decides, when all is measured, to measure it again in batches, if carry-over was shown. What was measured in turn does not count
// then, whatever it said: the batches are trials of their own.
func (x *experimentRun) toBatches() error {
	if x.d.Table {
		return nil // its length was promised
	}
	e := *x.e
	e.TestCarry()
	if !slices.ContainsFunc(e.Carry, result.CarryOver.Shown) {
		return nil
	}
	e.Trials = nil
	e.Design.Batch = &result.Batch{Trials: 4, Dropped: 1, Rounds: max(stat.MinPairs, min(e.Design.Pairs, x.fewest())), Why: result.CarryNote(e.Carry)}
	return x.write(e)
}
