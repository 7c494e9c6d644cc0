package stat

// Comparison is a penalty: throughput lost, in percent of the host's (negative: gained).
type Comparison struct {
	Pairs      int         `json:"pairs"`
	PenaltyPct float64     `json:"penalty_pct"`
	CI95Pct    *[2]float64 `json:"ci95_pct,omitempty"` // absent: too few pairs
	CI90Pct    *[2]float64 `json:"ci90_pct,omitempty"`
	Verdict    Verdict     `json:"verdict"`                 // against the run's margin
	Could      *float64    `json:"could_decide_pct"`        // smallest margin that this spread decides (90 % power); null: too few pairs
	AtCould    Verdict     `json:"verdict_at_could_decide"` // against that margin instead
	Totals     *Totals     `json:"totals,omitempty"`        // the second estimate: of all blocks together. Equivalent needs both
}

// Judge makes a comparison of log ratios in which more is better. toPct turns one into percent worse, and falls as the
// ratio rises. It returns nil where there is nothing to compare.
func Judge(d []float64, marginPct float64, toPct func(float64) float64) *Comparison {
	return judgeBy(NewEstimate, d, marginPct, toPct)
}

// JudgeSerial is Judge for values that were compared with nothing in their own round: see SerialEstimate.
func JudgeSerial(d []float64, marginPct float64, toPct func(float64) float64) *Comparison {
	return judgeBy(SerialEstimate, d, marginPct, toPct)
}

func judgeBy(locate func([]float64) Estimate, d []float64, marginPct float64, toPct func(float64) float64) *Comparison {
	if len(d) == 0 {
		return nil
	}
	return JudgeEstimate(locate(d), marginPct, toPct)
}

// JudgeEstimate makes a comparison of an estimated log ratio in which more is better.
func JudgeEstimate(e Estimate, marginPct float64, toPct func(float64) float64) *Comparison {
	c := Comparison{
		Pairs: e.Pairs, PenaltyPct: toPct(e.Center), CI95Pct: Percents(e.I95, toPct), CI90Pct: Percents(e.I90, toPct),
		Verdict: Decide(e, LogMargin(marginPct)), AtCould: Undecided,
	}
	if m, ok := decidable(e); ok {
		pct := toPct(-m) // in the unit of the penalty: the additional need of time can exceed 100 %
		c.Could, c.AtCould = &pct, Decide(e, m)
	}
	return &c
}

// Percents turns an interval of log ratios into one of penalties, which run the other way.
func Percents(i *Interval, toPct func(float64) float64) *[2]float64 {
	if i == nil {
		return nil
	}
	return &[2]float64{toPct(i.Hi), toPct(i.Lo)}
}
