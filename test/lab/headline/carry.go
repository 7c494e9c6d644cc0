package headline

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Carried says whether what ran just before a trial shows in it.
type Carried struct {
	What   string  `json:"what"` // p50, p99
	After  int     `json:"after_full"`
	Others int     `json:"after_others"`
	Ratio  float64 `json:"ratio"` // after arms whose nodes take all of the disk, to after others
	P      float64 `json:"p"`     // of no difference
}

// shuffles is how many random orders the test of carry-over tries.
const shuffles = 2_000

// carry compares the trials that came after an arm whose nodes take all that the disk has with those that came after
// another. The order of a round is random, so where nothing is carried over, what ran before a trial has nothing to do with how
// far the trial is from its arm's mean. The p-value is the part of random exchanges, among the trials of each arm, of what ran before
// that make at least as large a difference.
func (r *Report) carry() {
	full := map[string]bool{}
	for _, a := range arms("") {
		full[a.Name] = a.Full
	}
	for _, what := range []string{p50, p99} {
		var off [][]float64 // by arm: how far each trial is from the arm's mean, ln
		var after [][]bool  // whether it came after a full arm
		c := Carried{What: what}
		for _, name := range r.Plan.Arms {
			logs, trials := r.logs(name, what), r.of(name)
			if len(logs) < 2 {
				continue
			}
			var one []float64
			var was []bool
			for i, v := range logs {
				if trials[i].Before == "" { // nothing did
					continue
				}
				one, was = append(one, v-meanOf(logs)), append(was, full[trials[i].Before])
			}
			for _, w := range was {
				if w {
					c.After++
				} else {
					c.Others++
				}
			}
			off, after = append(off, one), append(after, was)
		}
		if c.After == 0 || c.Others == 0 {
			continue
		}
		seen := apart(off, after)
		c.Ratio = math.Exp(seen)
		random, as := rand.New(rand.NewPCG(r.Plan.Seed, 1<<32)), 1
		for range shuffles {
			for _, was := range after {
				random.Shuffle(len(was), func(i, j int) { was[i], was[j] = was[j], was[i] })
			}
			if math.Abs(apart(off, after)) >= math.Abs(seen)-1e-12 {
				as++
			}
		}
		c.P = float64(as) / (shuffles + 1)
		r.CarryOver = append(r.CarryOver, c)
	}
}

// apart is the mean of those after a full arm less the mean of the others.
func apart(off [][]float64, after [][]bool) float64 {
	var yes, no []float64
	for i := range off {
		for j, v := range off[i] {
			if after[i][j] {
				yes = append(yes, v)
			} else {
				no = append(no, v)
			}
		}
	}
	return meanOf(yes) - meanOf(no)
}

func meanOf(x []float64) float64 {
	sum := 0.0
	for v := range slices.Values(x) {
		sum += v
	}
	return sum / float64(max(len(x), 1))
}
