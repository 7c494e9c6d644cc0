package bench

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/internal/sys/refuse"
)

// This file decides how much an experiment measures, before the first trial that counts (docs/METHOD.md).

// lengths shortens the trials until a pilot and about 20 pairs fit into the share of the time. It refuses if even the shortest trials of
// the fewest pairs do not fit.
func (x *experimentRun) lengths(design *result.Design) error {
	if x.d.Table || x.o.Run > 0 {
		return x.givenLengths(design)
	}
	cells := time.Duration(len(x.b.Rows) * len(x.b.Arms))
	rounds := x.o.FewestRounds()
	if least := x.d.Cost(&x.o) * time.Duration(rounds); least > x.share+x.share/2 {
		return refuse.Cannotf("give a larger --budget", "its share of the time, %v, is too small for %s: the shortest trials of %d rows in %d arms, %d times, take %v",
			x.share.Round(time.Second), x.d.Name, len(x.b.Rows), len(x.b.Arms), rounds, least.Round(time.Second))
	}
	aim := 1 + x.d.Pilot + 20
	if x.o.Pairs > 0 {
		aim = 1 + x.o.Pairs
	}
	full := x.d.Run + x.d.Warm
	beside := max(x.d.Cost(&x.o)/cells-x.d.Least, 0)
	total := min(max(x.share/cells/time.Duration(aim)-beside, x.d.Least), max(full, x.d.Least))
	if full > 0 {
		x.warm = time.Duration(float64(total) * float64(x.d.Warm) / float64(full)).Truncate(time.Millisecond)
		x.length = total - x.warm
	}
	if x.d.Whole {
		if x.d.Warm > 0 {
			x.warm = max(x.warm.Truncate(time.Second), time.Second)
		}
		x.length = max((total - x.warm).Truncate(time.Second), time.Second)
	}
	x.length = x.length.Truncate(time.Millisecond)
	design.RunMillis, design.WarmMillis = x.length.Milliseconds(), x.warm.Milliseconds()
	return nil
}

// givenLengths uses the lengths of the options, or else those of the table.
func (x *experimentRun) givenLengths(design *result.Design) error {
	x.length, x.warm = x.d.Run, x.d.Warm
	if x.o.Run > 0 {
		x.length = x.o.Run
	}
	if x.o.Warm > 0 {
		x.warm = x.o.Warm
	}
	if x.d.Whole && (x.length%time.Second != 0 || x.length < time.Second || x.length > time.Hour || x.warm%time.Second != 0 || x.warm > time.Minute) {
		return refuse.Invalidf("a trial of %v after %v: %s takes whole seconds, from 1s to 1h after at most 1m", x.length, x.warm, x.d.Program.Name)
	}
	design.RunMillis, design.WarmMillis = x.length.Milliseconds(), x.warm.Milliseconds()
	return nil
}

// pilot returns the number of pilot rounds: 0 if the number of pairs is given or already fixed, or if no time would be left for the
// fewest pairs.
func (x *experimentRun) pilot() int {
	begun := slices.ContainsFunc(x.e.Trials, func(t result.Trial) bool { return t.Session == x.session && t.Round < 0 })
	switch {
	case x.o.Pairs > 0 || x.e.Design.Pairs > 0 || x.d.Table:
		return 0
	case begun:
		return x.d.Pilot
	case x.left() < time.Duration(x.d.Pilot+x.fewest())*x.roundTime():
		return 0
	}
	return x.d.Pilot
}

// fewest is the smallest number of pairs by which a row can be called worse or better after Holm's correction over the whole
// run: the smallest p-value of n pairs is 2/2ⁿ, and the correction multiplies it by the number of comparisons.
func (x *experimentRun) fewest() int {
	if x.OneByOne {
		return stat.MinPairs
	}
	return stat.LeastPairs(x.comparisons())
}

// comparisons estimates how many comparisons by a first measure the whole run makes.
func (s *study) comparisons() int {
	n := 0
	for _, d := range s.defs {
		if d.Weight(&s.o) == 0 {
			continue // it will not run here
		}
		switch {
		case d.Disk == nil:
			inRow := 1
			if d.Batch != nil {
				inRow = d.Batch.Trials
			}
			n += d.Cells(&s.o) / inRow / 2 // beside the reference and its second time
		case d.Disks == bed.EachDisk:
			n += len(d.Disk) * (len(s.o.Dirs) + len(s.o.Devices)) * d.CompareWith(&s.o)
		default:
			n += len(d.Disk) * d.CompareWith(&s.o)
		}
	}
	return max(n, 1)
}

// left returns what is left of the share. In a resumed run it counts the time of the trials.
func (x *experimentRun) left() time.Duration {
	if len(x.done) > 0 {
		return x.share - x.e.Wall(x.session)
	}
	return x.share - time.Since(x.began)
}

// fix decides the number of pairs before the first pair: as many as the pilot asks for, if they fit into the time left.
func (x *experimentRun) fix(pilot int) error {
	e := *x.e
	e.Trials = nil
	d := &e.Design
	d.PilotPairs = pilot
	round := x.roundTime()
	fits := min(max(int(x.left()/max(round, time.Millisecond)), stat.MinPairs), bed.MostPairs)
	d.Pairs = fits
	if x.o.Pairs > 0 || x.d.Pairs > 0 {
		d.Pairs = cmp.Or(x.o.Pairs, x.d.Pairs)
	} else if pilot > 0 {
		d.WantedPairs = max(x.wanted(), x.fewest())
		d.Pairs = min(d.WantedPairs, fits)
	}
	if pilot == 0 && x.d.Pilot > 0 && x.o.Pairs == 0 {
		e.Notes = append(e.Notes, fmt.Sprintf("there was no time for a pilot: %d pairs are what fits", d.Pairs))
	}
	if d.Pairs < x.fewest() {
		e.Notes = append(e.Notes, fmt.Sprintf("no row can be called worse or better after the correction for about %d comparisons of the run: that takes %d pairs, there are %d",
			x.comparisons(), x.fewest(), d.Pairs))
	}
	if pilot == 0 {
		return x.write(e)
	}
	d.CouldPct = x.could(d.Pairs)
	if d.Short = d.WantedPairs > d.Pairs; d.Short {
		e.Notes = append(e.Notes, fmt.Sprintf("the budget is too small to decide a margin of %s %% for every row: %d pairs would, %d fit. They decide %s %% by the pilot",
			result.Brief(x.o.MarginPct), d.WantedPairs, d.Pairs, result.Brief(d.CouldPct)))
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

// spreads returns for each row the log ratios of the pilot in the first measure, minus the mean of their arm.
func (x *experimentRun) spreads() [][]float64 {
	var all [][]float64
	for _, r := range x.e.Rows {
		by, _ := x.e.ByArm(r.Name, func(t result.Trial) bool { return t.Round < 0 && t.Session == x.session && x.e.Kept(t) })
		for _, m := range x.e.Measures {
			var pooled []float64
			for _, a := range x.e.Arms[1:] {
				if d, _ := m.Pairs(by[x.e.Arms[0].Name], by[a.Name]); len(d.Arm) > 1 {
					pooled = append(pooled, stat.Centred(d.Logs())...)
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

// wanted returns the number of pairs that decide the margin in each row; 0 if the pilot cannot tell.
func (x *experimentRun) wanted() int {
	most := 0
	for _, d := range x.spreads() {
		if n, ok := stat.PairsNeeded(d, x.o.MarginPct); ok {
			most = max(most, n)
		}
	}
	return most
}

// could returns the margin that so many pairs decide in each row; 0 if the pilot cannot tell.
func (x *experimentRun) could(pairs int) float64 {
	most := 0.0
	for _, d := range x.spreads() {
		if m, ok := stat.MarginFor(d, pairs); ok {
			most = max(most, m)
		}
	}
	return most
}
