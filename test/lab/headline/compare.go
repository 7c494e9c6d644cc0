package headline

import (
	"math"

	"berth/internal/bench/stat"
)

// The margins in percent, fixed before the measurement.
const (
	latencyMargin = 25 // "equivalent": neither is more than this percentage longer than the other
	workMargin    = 10
)

// Verdicts of a ratio.
const (
	Equivalent = "equivalent" // the 90 % interval lies within the margin
	Less       = "less"       // not equivalent, and the 95 % interval lies below 1
	More       = "more"       // the same above 1
	Undecided  = "undecided"
)

// Compared quantities besides p50 and p99.
const (
	p50  = "p50"
	p99  = "p99"
	work = "work"      // bytes that the nodes move
	left = "idle work" // bytes that the nodes move while the service is idle
)

// question is one comparison.
type question struct {
	a, b, what string
	main       bool
}

// questions returns all questions, fixed before the measurement. The main ones share an error level of 5 % (Bonferroni). Each of
// the others has its own 5 %.
func questions() (all []question) {
	isMain := map[question]bool{
		{Protected, Alone, p99, false}:                    true, // is it as if there were no nodes?
		{Protected, IOMaxCPU, p99, false}:                 true, // what does it add over two lines of shell?
		{HalfProtected, HalfIOMaxCPU, p99, false}:         true, // the same where the service is idle at times,
		{HalfProtected, HalfIOMaxCPU, "idle work", false}: true, // and who gets what is left over?
	}
	for _, pair := range [][2]string{
		{Protected, Alone},
		{Protected, Unprotected},
		{Protected, IOMax},
		{Protected, IOMaxCPU},
		{Protected, Ionice},
		{Protected, BFQWeights},
		{Strict, Alone},
		{Strict, Unprotected},
		{Strict, Protected},
		{Strict, IOMaxCPU},
		{CPUOnly, Unprotected},
		{DiskOnly, Unprotected},
		{Protected, CPUOnly},
		{Protected, DiskOnly},
		{HalfProtected, HalfIOMaxCPU},
		{HalfStrict, HalfIOMaxCPU},
		{SlurmProtected, Alone},
		{SlurmProtected, Slurm},
		{SlurmAgain, Slurm},
	} {
		for _, what := range []string{p50, p99, work, left} {
			half := pair[0] == HalfProtected || pair[0] == HalfStrict
			if what == work && pair[1] == Alone || what == left && !half {
				continue
			}
			q := question{pair[0], pair[1], what, false}
			q.main = isMain[q]
			all = append(all, q)
		}
	}
	return all
}

// Ratio is arm A's quantity divided by arm B's: the Hodges–Lehmann estimate over the ratios of the rounds.
type Ratio struct {
	A       string      `json:"a"`
	B       string      `json:"b"`
	What    string      `json:"what"` // p50, p99, work (bytes that the nodes moved), idle work (those while the service is idle)
	Main    bool        `json:"main"` // its verdict holds together with those of the other main ones
	Rounds  int         `json:"rounds"`
	Ratio   float64     `json:"ratio"`
	CI      *[2]float64 `json:"ci,omitempty"` // 95 %; of a main one 98.75 %
	Verdict string      `json:"verdict"`
}

// mains is the number of main questions.
const mains = 4

func (r *Report) compare() {
	for _, q := range questions() {
		var d []float64
		a, b := r.logs(q.a, q.what), r.logs(q.b, q.what)
		for i := range min(len(a), len(b)) {
			d = append(d, a[i]-b[i])
		}
		if got := ratio(d, q); got != nil {
			r.Compared = append(r.Compared, *got)
		}
	}
	// The effect of the CPU part with the disk part on, divided by its effect with the disk part off.
	for _, what := range []string{p50, p99} {
		var d []float64
		both, disk, cpu, none := r.logs(Protected, what), r.logs(DiskOnly, what), r.logs(CPUOnly, what), r.logs(Unprotected, what)
		for i := range min(len(both), len(disk), len(cpu), len(none)) {
			d = append(d, both[i]-disk[i]-cpu[i]+none[i])
		}
		if got := ratio(d, question{Protected + "/" + DiskOnly, CPUOnly + "/" + Unprotected, what, false}); got != nil {
			r.Crossed = append(r.Crossed, *got)
		}
	}
	for _, arm := range []string{Protected, Strict, CPUOnly, DiskOnly, IOMax, IOMaxCPU, Ionice, BFQWeights} {
		if gone := r.removed(arm, Unprotected); gone != nil {
			r.Removed = append(r.Removed, *gone)
		}
	}
	for _, arm := range []string{SlurmProtected, SlurmAgain} { // of the second, which is the same once more, the estimator should say 0
		if gone := r.removed(arm, Slurm); gone != nil {
			r.Removed = append(r.Removed, *gone)
		}
	}
}

// logs returns the logarithms of an arm's quantity, by round; nil if the arm was not measured or a value is 0.
func (r *Report) logs(arm, what string) (all []float64) {
	for _, t := range r.of(arm) {
		v := map[string]float64{p50: t.P50, p99: t.P99, work: t.Work.disk()}[what]
		if what == left && t.Idle != nil {
			v = t.Idle.disk()
		}
		if v <= 0 {
			return nil
		}
		all = append(all, math.Log(v))
	}
	return all
}

// ratio judges differences of logarithms. It returns nil if there are none.
func ratio(d []float64, q question) *Ratio {
	if len(d) == 0 {
		return nil
	}
	alpha, margin := 0.05, math.Log1p(latencyMargin/100.)
	if q.main {
		alpha /= mains
	}
	if q.what == work || q.what == left {
		margin = math.Log1p(workMargin / 100.)
	}
	center, ci := stat.Paired(d, alpha)
	_, inner := stat.Paired(d, 2*alpha) // two one-sided tests
	got := &Ratio{A: q.a, B: q.b, What: q.what, Main: q.main, Rounds: len(d), Ratio: math.Exp(center), Verdict: Undecided}
	if ci != nil {
		got.CI = &[2]float64{math.Exp(ci.Lo), math.Exp(ci.Hi)}
	}
	switch {
	case inner != nil && -margin < inner.Lo && inner.Hi < margin:
		got.Verdict = Equivalent
	case ci != nil && ci.Hi < 0:
		got.Verdict = Less
	case ci != nil && ci.Lo > 0:
		got.Verdict = More
	}
	return got
}

// Removed says how much of the p99's increase in another arm, without protection, is not in one arm.
type Removed struct {
	Arm string `json:"arm"`
	*stat.Protected
}

func (r *Report) removed(arm, without string) *Removed {
	by := func(arm string) map[int]float64 {
		all := map[int]float64{}
		for _, t := range r.of(arm) {
			all[t.Round] = t.P99
		}
		return all
	}
	if p := stat.Protection(by(Alone), by(without), by(arm)); p != nil {
		return &Removed{arm, p}
	}
	return nil
}

// located estimates the location of waits on a log scale, because a stall in one round makes a wait many times as long.
func located(rounds []float64) (float64, *[2]float64) {
	var logs []float64
	for _, v := range rounds {
		logs = append(logs, math.Log(v))
	}
	if logs == nil {
		return 1, nil
	}
	e := stat.SerialEstimate(logs)
	if e.I95 == nil {
		return math.Exp(e.Center), nil
	}
	return math.Exp(e.Center), &[2]float64{math.Exp(e.I95.Lo), math.Exp(e.I95.Hi)}
}
