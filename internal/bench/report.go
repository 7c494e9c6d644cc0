package bench

import (
	"encoding/json"
	"io"
	"time"
)

// Format names the JSON document of a report and its version; docs/bench-json.md describes it.
const Format = "berth-bench-disk/1"

// Report is all that a run found out.
type Report struct {
	Format  string    `json:"format"`
	Partial bool      `json:"partial"` // the run was interrupted: fewer pairs than planned
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`

	Seed      uint64          `json:"seed"` // of the order of the trials
	Quick     bool            `json:"quick"`
	Pairs     int             `json:"pairs"`      // blocks a row, fixed before the first one was measured
	MarginPct float64         `json:"margin_pct"` // for the verdicts, percent of the host's throughput
	RunMillis int64           `json:"run_ms"`     // of one trial
	Warm      int64           `json:"warm_ms"`    // before it, not counted
	Fio       string          `json:"fio"`
	Machine   Machine         `json:"machine"`
	Target    Target          `json:"target"`
	Node      json.RawMessage `json:"node,omitempty"` // the spec of the node; absent: no node was measured

	Rows   []Result    `json:"rows"`
	Carry  []CarryOver `json:"carry_over,omitempty"`
	Trials []Trial     `json:"trials"` // in the order in which they ran, the warm-up round first
	Notes  []string    `json:"notes,omitempty"`
}

// Trial is one run of fio in one arm: host, node or null.
type Trial struct {
	Head
	*Measured // nil where it failed
}

// Result is one row of the report. Medians are over the trials of an arm that count.
type Result struct {
	Row
	Command   []string    `json:"command"` // the same in every arm
	Host      *Median     `json:"host,omitempty"`
	Node      *Median     `json:"node,omitempty"`
	Null      *Median     `json:"null,omitempty"`
	Penalty   *Comparison `json:"penalty,omitempty"`      // node against host
	NullComp  *Comparison `json:"null_penalty,omitempty"` // host against itself: what is not due to the node
	Published *Published  `json:"published,omitempty"`
	Flags     []Flag      `json:"flags,omitempty"`
}

// Median holds the medians of an arm.
type Median struct {
	Trials    int     `json:"trials"`
	IOPS      float64 `json:"iops"`
	Bandwidth float64 `json:"bytes_per_second"`
	LatMean   float64 `json:"lat_mean_us"` // microseconds
	LatP99    float64 `json:"lat_p99_us"`
}

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
	*Tests                 // absent where the table has them elsewhere
}

// Flag is a reason to read a row with care.
type Flag string

// The flags.
const (
	SchedulerBound Flag = "scheduler-bound" // more than 16 threads a core: the host itself waits for CPUs
	TrialError     Flag = "trial-error"     // a trial failed; its block is left out
	Disturbed      Flag = "disturbed"       // more than a tenth of the trials lie far from the median of their arm
	ArmsDiffer     Flag = "null-differs"    // the null arm itself is called worse or better
	Drifts         Flag = "drifts"          // the reference's last third differs from its first by more than a tenth
	NotSteady      Flag = "not-steady"      // a solid state disk did not reach its steady state within the time there was
)

// analyse turns trials into results. It does no I/O and changes nothing: a report's trials give its rows again.
func analyse(rows []Row, trials []Trial, cores int, marginPct float64) []Result {
	results := make([]Result, len(rows))
	for i, row := range rows {
		r := Result{Row: row}
		arms, failed := map[string][]Trial{}, false
		for _, t := range trials {
			if t.Row == row.Name && t.Round > 0 {
				arms[t.Arm] = append(arms[t.Arm], t)
				failed = failed || t.Error != ""
			}
		}
		r.Host, r.Node, r.Null = medians(arms[hostArm]), medians(arms[nodeArm]), medians(arms[nullArm])
		r.Penalty = compare(arms[hostArm], arms[nodeArm], marginPct)
		r.NullComp = compare(arms[hostArm], arms[nullArm], marginPct)
		r.Flags = flags(row, r, arms, cores, failed)
		results[i] = r
	}
	var nodes, nulls []*Comparison
	for _, r := range results {
		nodes, nulls = append(nodes, r.Penalty), append(nulls, r.NullComp)
	}
	correctTable(nodes)
	correctTable(nulls)
	return results
}

func medians(trials []Trial) *Median {
	var iops, bw, mean, p99 []float64
	for _, t := range trials {
		if t.Measured != nil {
			iops, bw = append(iops, t.IOPS), append(bw, t.Bandwidth)
			mean, p99 = append(mean, t.LatMean), append(p99, t.LatP99)
		}
	}
	if len(iops) == 0 {
		return nil
	}
	return &Median{Trials: len(iops), IOPS: MedianOf(iops), Bandwidth: MedianOf(bw), LatMean: MedianOf(mean), LatP99: MedianOf(p99)}
}

// compare estimates the penalty of arm against host from the rounds in which both were measured; nil if there is none.
func compare(host, arm []Trial, marginPct float64) *Comparison {
	b := inBlocks(iopsByRound(host), iopsByRound(arm))
	return b.judge(marginPct, penalty).tested(b, marginPct)
}

func iopsByRound(trials []Trial) map[int]float64 {
	by := map[int]float64{}
	for _, t := range trials {
		if t.Measured != nil {
			by[t.Round] = t.IOPS
		}
	}
	return by
}

// logRatios returns ln(arm / host) of the rounds that have both, in the order of rounds.
func logRatios(host, arm map[int]float64) []float64 { return inBlocks(host, arm).logs() }

// judge makes a comparison of log ratios in which more is better. toPct turns one into percent worse, and falls as the
// ratio rises. It returns nil where there is nothing to compare.
func judge(d []float64, marginPct float64, toPct func(float64) float64) *Comparison {
	return judgeBy(estimate, d, marginPct, toPct)
}

func judgeBy(locate func([]float64) Estimate, d []float64, marginPct float64, toPct func(float64) float64) *Comparison {
	if len(d) == 0 {
		return nil
	}
	e := locate(d)
	c := Comparison{
		Pairs: e.Pairs, PenaltyPct: toPct(e.Center), CI95Pct: percent(e.I95, toPct), CI90Pct: percent(e.I90, toPct),
		Verdict: decide(e, logMargin(marginPct)), AtCould: Undecided,
	}
	if m, ok := decidable(e); ok {
		pct := toPct(-m) // in what the penalty is told in: a time that is needed more can exceed 100 %
		c.Could, c.AtCould = &pct, decide(e, m)
	}
	return &c
}

// percent turns an interval of log ratios into one of penalties, which run the other way.
func percent(i *Interval, toPct func(float64) float64) *[2]float64 {
	if i == nil {
		return nil
	}
	return &[2]float64{toPct(i.Hi), toPct(i.Lo)}
}

func flags(row Row, r Result, arms map[string][]Trial, cores int, failed bool) []Flag {
	var f []Flag
	if row.Jobs > boundThreads*cores {
		f = append(f, SchedulerBound)
	}
	if failed {
		f = append(f, TrialError)
	}
	far, all := 0, 0
	for _, trials := range arms {
		var iops []float64
		for _, t := range trials {
			if t.Measured != nil {
				iops = append(iops, t.IOPS)
			}
		}
		far, all = far+outliers(iops), all+len(iops)
	}
	if 10*far > all {
		f = append(f, Disturbed)
	}
	if n := r.NullComp; n != nil && (n.Verdict == Worse || n.Verdict == Better) {
		f = append(f, ArmsDiffer)
	}
	return f
}

// JSON writes the report as one indented document.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
