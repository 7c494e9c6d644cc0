package bench

import (
	"encoding/json"
	"io"
	"maps"
	"slices"
	"time"

	"berth/internal/vnode"
)

// IsolationFormat names the JSON document of berth bench isolation; docs/bench-json.md describes it.
const IsolationFormat = "berth-bench-isolation/1"

// Isolation is all that a run of berth bench isolation found out.
type Isolation struct {
	Format  string    `json:"format"`
	Partial bool      `json:"partial"` // the run was interrupted
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`

	Seed      uint64       `json:"seed"`
	Quick     bool         `json:"quick"`
	Rounds    int          `json:"rounds"`     // planned; each row has one block a round
	MarginPct float64      `json:"margin_pct"` // for the verdicts
	RunMillis int64        `json:"run_ms"`     // of one trial
	Warm      int64        `json:"warm_ms"`
	Fio       string       `json:"fio"`
	Machine   Machine      `json:"machine"`
	Target    Target       `json:"target"`
	Engine    vnode.Engine `json:"engine,omitempty"` // that the disk was switched to for parts c and d

	Cost     []CostRow     `json:"cost,omitempty"`     // part a
	Throttle []ThrottleRow `json:"throttle,omitempty"` // part b
	Weights  []WeightRow   `json:"weights,omitempty"`  // part c
	Latency  *LatencyRow   `json:"latency,omitempty"`  // part d
	LeftOut  []LeftOut     `json:"left_out,omitempty"`

	Carry map[Part][]CarryOver `json:"carry_over,omitempty"` // of the parts that compare arms

	Trials []IsolationTrial `json:"trials"` // part by part in the order in which they ran
	Notes  []string         `json:"notes,omitempty"`
}

// LeftOut is a part that this disk or host cannot have.
type LeftOut struct {
	Part   Part   `json:"part"`
	Why    string `json:"why"`
	Remedy string `json:"remedy,omitempty"`
}

// CostRow compares n processes in n nodes with n on the host.
type CostRow struct {
	Name     string      `json:"name"` // "16KiB x4"
	Block    int64       `json:"block_bytes"`
	Nodes    int         `json:"nodes"`
	Host     float64     `json:"host_bytes_per_second"` // all processes together; median
	Node     float64     `json:"node_bytes_per_second"`
	Penalty  *Comparison `json:"penalty,omitempty"`      // nodes against host, of the sum
	NullComp *Comparison `json:"null_penalty,omitempty"` // host against itself
}

// ThrottleRow is what a node with a rate got, beside nodes without one.
type ThrottleRow struct {
	Name        string      `json:"name"` // "10 MB/s +3"
	Asked       int64       `json:"asked_bytes_per_second"`
	Competitors int         `json:"competitors"`
	Achieved    float64     `json:"achieved_bytes_per_second"`    // median
	Others      float64     `json:"competitors_bytes_per_second"` // all together; median
	Short       *Comparison `json:"short,omitempty"`              // achieved against asked: percent that is missing
}

// WeightRow is how nodes shared the disk.
type WeightRow struct {
	Name   string      `json:"name"` // "50:25:25 q16"
	Depth  int         `json:"queue_depth"`
	Total  float64     `json:"bytes_per_second"` // all nodes; median
	Shares []Share     `json:"shares"`
	Holds  Verdict     `json:"holds"`          // equivalent: each share is shown to lie within 5 points of what was asked; worse: one is shown not to
	Loss   *Comparison `json:"loss,omitempty"` // of the total, against one node alone at that depth
}

// Share is one node's part of what all got.
type Share struct {
	Asked int         `json:"asked_pct"`
	Got   float64     `json:"got_pct"` // Hodges–Lehmann estimate
	CI95  *[2]float64 `json:"ci95_pct,omitempty"`
}

// sharePoints is how far a share may lie from what was asked.
const sharePoints = 5

// LatencyRow is what a reader waited.
type LatencyRow struct {
	Arms []LatencyArm `json:"arms"`
}

// LatencyArm are the medians of one arm of part d, and how much longer the reader waited than alone.
type LatencyArm struct {
	Arm     string      `json:"arm"` // alone, unprotected, classes, rates
	P50     float64     `json:"lat_p50_us"`
	P99     float64     `json:"lat_p99_us"`
	P99CI   *[2]float64 `json:"lat_p99_ci95_us,omitempty"`
	Reads   float64     `json:"reads_per_second"`
	Written float64     `json:"written_bytes_per_second"` // by all writers
	Longer  *Comparison `json:"longer,omitempty"`         // p99 against alone, percent
	Worth   *Protected  `json:"protection,omitempty"`     // of the arms classes and rates: of the p99
}

// trials returns those of a row and arm that count, by round.
func (r *Isolation) trials(p Part, row, arm string) map[int]*IsolationMeasured {
	by := map[int]*IsolationMeasured{}
	for _, t := range r.Trials {
		if t.Part == p && t.Row == row && t.Arm == arm && t.Round > 0 && t.IsolationMeasured != nil {
			by[t.Round] = t.IsolationMeasured
		}
	}
	return by
}

// each turns trials into numbers, by round.
func each(trials map[int]*IsolationMeasured, number func(*IsolationMeasured) float64) map[int]float64 {
	by := map[int]float64{}
	for round, m := range trials {
		by[round] = number(m)
	}
	return by
}

func total(m *IsolationMeasured) float64  { return sumOf(m.Jobs) }
func others(m *IsolationMeasured) float64 { return sumOf(m.Jobs[1:]) }
func sumOf(jobs []JobMeasured) (sum float64) {
	for _, j := range jobs {
		sum += j.Bandwidth
	}
	return sum
}

// valuesOf returns the values in the order of rounds.
func valuesOf(by map[int]float64) (all []float64) {
	for _, round := range slices.Sorted(maps.Keys(by)) {
		all = append(all, by[round])
	}
	return all
}

// analyse makes the rows from the trials. It does no I/O.
func (r *Isolation) analyse() {
	for _, row := range rowsOf(CostPart, r.Quick) {
		at := func(arm string) map[int]float64 { return each(r.trials(CostPart, row.name, arm), total) }
		host, node := at(hostArm), at(nodeArm)
		if len(host) == 0 {
			continue
		}
		r.Cost = append(r.Cost, CostRow{
			Name: row.name, Block: row.block, Nodes: row.count, Host: MedianOf(valuesOf(host)), Node: MedianOf(valuesOf(node)),
			Penalty:  inBlocks(host, node).judge(r.MarginPct, penalty),
			NullComp: inBlocks(host, at(nullArm)).judge(r.MarginPct, penalty),
		})
	}
	for _, row := range rowsOf(ThrottlePart, r.Quick) {
		got := r.trials(ThrottlePart, row.name, nodeArm)
		if len(got) == 0 {
			continue
		}
		achieved := each(got, func(m *IsolationMeasured) float64 { return m.Jobs[0].Bandwidth })
		asked := each(got, func(*IsolationMeasured) float64 { return float64(row.rate) })
		r.Throttle = append(r.Throttle, ThrottleRow{
			Name: row.name, Asked: row.rate, Competitors: row.count, Achieved: MedianOf(valuesOf(achieved)),
			Others: MedianOf(valuesOf(each(got, others))), Short: judgeBy(located, logRatios(asked, achieved), r.MarginPct, penalty),
		})
	}
	r.analyseWeights()
	r.analyseLatency()
	r.testCarry()
}

// testCarry looks for carry-over where arms take turns: in parts a and d.
func (r *Isolation) testCarry() {
	r.Carry = map[Part][]CarryOver{}
	for part, reference := range map[Part]string{CostPart: hostArm, LatencyPart: aloneArm} {
		trials := seen(r.Trials, func(t IsolationTrial) (Head, float64) {
			switch {
			case t.Part != part || t.IsolationMeasured == nil || len(t.Jobs) == 0:
				return t.Head, 0
			case part == LatencyPart:
				return t.Head, t.Jobs[0].LatP99
			}
			return t.Head, total(t.IsolationMeasured)
		})
		if c := carryOver(reference, trials, part == LatencyPart); c != nil {
			r.Carry[part] = c
		}
	}
}

func (r *Isolation) analyseWeights() {
	for _, row := range rowsOf(WeightPart, r.Quick) {
		got := r.trials(WeightPart, row.name, nodeArm)
		if len(got) == 0 {
			continue
		}
		w := WeightRow{Name: row.name, Depth: row.depth, Total: MedianOf(valuesOf(each(got, total))), Holds: Equivalent}
		for i, asked := range row.split {
			points := valuesOf(each(got, func(m *IsolationMeasured) float64 { return 100*m.Jobs[i].Bandwidth/total(m) - float64(asked) }))
			e := located(points)
			s := Share{Asked: asked, Got: float64(asked) + e.Center}
			if e.I95 != nil {
				s.CI95 = &[2]float64{float64(asked) + e.I95.Lo, float64(asked) + e.I95.Hi}
			}
			w.Shares, w.Holds = append(w.Shares, s), worseOf(w.Holds, inPoints(e, sharePoints))
		}
		if len(row.split) > 1 {
			alone := each(r.trials(WeightPart, isolationAlone(row), nodeArm), total)
			w.Loss = inBlocks(alone, each(got, total)).judge(r.MarginPct, penalty)
		}
		r.Weights = append(r.Weights, w)
	}
}

// isolationAlone is the name of the row with one node that reads the same.
func isolationAlone(of isolationRow) string {
	for _, row := range rowsOf(WeightPart, false) {
		if len(row.split) == 1 && row.depth == of.depth && row.block == of.block {
			return row.name
		}
	}
	return ""
}

// inPoints judges a difference in points against a bound: the 90 % interval lies inside (two one-sided tests at 5 %), or the
// 95 % interval outside.
func inPoints(e Estimate, points float64) Verdict {
	switch {
	case e.I90 != nil && -points < e.I90.Lo && e.I90.Hi < points:
		return Equivalent
	case e.I95 != nil && (e.I95.Lo >= points || e.I95.Hi <= -points):
		return Worse
	}
	return Undecided
}

// worseOf returns what can be said of both.
func worseOf(a, b Verdict) Verdict {
	switch {
	case a == Worse || b == Worse:
		return Worse
	case a == Undecided || b == Undecided:
		return Undecided
	}
	return Equivalent
}

func (r *Isolation) analyseLatency() {
	name := rowsOf(LatencyPart, r.Quick)[0].name
	p99 := func(m *IsolationMeasured) float64 { return m.Jobs[0].LatP99 }
	by := func(arm string) map[int]float64 { return each(r.trials(LatencyPart, name, arm), p99) }
	alone := by(aloneArm)
	if len(alone) == 0 {
		return
	}
	r.Latency = &LatencyRow{}
	for _, arm := range []string{aloneArm, unprotectedArm, classesArm, ratesArm} {
		got := r.trials(LatencyPart, name, arm)
		if len(got) == 0 {
			continue
		}
		a := LatencyArm{
			Arm: arm, P50: MedianOf(valuesOf(each(got, func(m *IsolationMeasured) float64 { return m.Jobs[0].LatP50 }))),
			P99: MedianOf(valuesOf(by(arm))), Written: MedianOf(valuesOf(each(got, others))),
			Reads: MedianOf(valuesOf(each(got, func(m *IsolationMeasured) float64 { return m.Jobs[0].IOPS }))),
		}
		if _, ci := Locate(valuesOf(by(arm))); ci != nil {
			a.P99CI = &[2]float64{ci.Lo, ci.Hi}
		}
		if arm != aloneArm {
			// Less is better here: a longer wait is a negative log ratio, and reads as percent longer.
			a.Longer = inBlocks(by(arm), alone).judge(r.MarginPct, extra)
		}
		if arm == classesArm || arm == ratesArm {
			a.Worth = Protection(alone, by(unprotectedArm), by(arm))
		}
		r.Latency.Arms = append(r.Latency.Arms, a)
	}
}

// JSON writes the report as one indented document.
func (r *Isolation) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
