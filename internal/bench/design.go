package bench

import (
	"fmt"
	"math"
	"slices"
	"time"

	"berth/internal/refuse"
)

// How much an experiment measures: all of it is decided before the first trial that counts (docs/METHOD.md).

// lengths shortens trials until a pilot and about 20 pairs fit into the share; it refuses where not even the shortest
// trials of the fewest pairs do.
func (x *experimentRun) lengths(design *Design) error {
	cells := time.Duration(len(x.b.rows) * len(x.b.arms))
	rounds := x.o.fewestRounds()
	if least := x.d.cost(&x.o) * time.Duration(rounds); least > x.share+x.share/2 {
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

// fewest is the smallest number of pairs by which a row can be called worse or better after Holm's correction over the whole
// run: the smallest p-value of n pairs is 2/2ⁿ, and the correction multiplies it by the number of comparisons.
func (x *experimentRun) fewest() int { return leastPairs(x.comparisons()) }

// comparisons is about how many rows are judged by their first measure in the whole run, arm by arm.
func (s *study) comparisons() int {
	n := 0
	for _, d := range s.defs {
		if d.weight(&s.o) == 0 {
			continue // it will not run here
		}
		switch {
		case d.disk == nil:
			inRow := 1
			if d.batch != nil {
				inRow = d.batch.Trials
			}
			n += d.cells(&s.o) / inRow / 2 // beside the reference and its second time
		case d.disks == eachDisk:
			n += len(d.disk) * (len(s.o.Dirs) + len(s.o.Devices))
		default:
			n += len(d.disk)
		}
	}
	return max(n, 1)
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
		by, _ := x.e.byArm(r.Name, func(t StudyTrial) bool { return t.Round < 0 && t.Session == x.session && x.e.kept(t) })
		for _, m := range x.e.Measures {
			var pooled []float64
			for _, a := range x.e.Arms[1:] {
				if d, _ := m.blocks(by[x.e.Arms[0].Name], by[a.Name]); len(d.arm) > 1 {
					pooled = append(pooled, centred(d.logs())...)
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
