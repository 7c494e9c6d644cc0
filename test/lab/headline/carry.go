package headline

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Carried says whether a trial's result depends on the arm that ran just before it.
type Carried struct {
	What   string  `json:"what"` // p50, p99
	After  int     `json:"after_full"`
	Others int     `json:"after_others"`
	Ratio  float64 `json:"ratio"` // mean after full arms, divided by mean after others
	P      float64 `json:"p"`     // p-value under no carry-over
}

// shuffles is the number of random permutations in the test of carry-over.
const shuffles = 2_000

// carry compares the trials that ran after a full arm, whose nodes use the disk fully, with those that ran after another arm. It
// is a permutation test: the order of a round is random, so without carry-over a trial's distance from its arm's mean does not
// depend on what ran before. The p-value is the share of permutations within each arm with at least as large a difference.
func (r *Report) carry() {
	full := map[string]bool{}
	for _, a := range arms("") {
		full[a.Name] = a.Full
	}
	for _, what := range []string{p50, p99} {
		var off [][]float64 // by arm: each trial's distance from the arm's mean, in ln
		var after [][]bool  // by arm: whether the trial ran after a full arm
		c := Carried{What: what}
		for _, name := range r.Plan.Arms {
			logs, trials := r.logs(name, what), r.of(name)
			if len(logs) < 2 {
				continue
			}
			var one []float64
			var was []bool
			for i, v := range logs {
				if trials[i].Before == "" { // no arm ran before it
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

// apart returns the mean after full arms minus the mean after others.
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
