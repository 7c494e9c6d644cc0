package bench

import (
	"encoding/json"
	"io"
	"math"
	"slices"
	"time"
)

// NetFormat names the JSON document of a NetReport and its version; docs/bench-json.md describes it.
const NetFormat = "berth-bench-net/1"

// NetReport is all that a network run found out.
type NetReport struct {
	Format  string    `json:"format"`
	Partial bool      `json:"partial"` // the run was interrupted: fewer pairs than planned
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`

	Seed      uint64  `json:"seed"` // of the order of the trials
	Quick     bool    `json:"quick"`
	Pairs     int     `json:"pairs"`      // blocks a row
	MarginPct float64 `json:"margin_pct"` // for the verdicts, percent of the host's
	RunMillis int64   `json:"run_ms"`     // of one trial
	Warm      int64   `json:"warm_ms"`    // before it, not counted
	Iperf     string  `json:"iperf"`
	Machine   Machine `json:"machine"`
	OwnPeer   bool    `json:"own_peer"` // the peer was a process on this machine: no wire was measured

	Arms   []NetArmInfo `json:"arms"` // host, null, then the nodes
	Rows   []NetResult  `json:"rows"`
	Carry  []CarryOver  `json:"carry_over,omitempty"`
	Trials []NetTrial   `json:"trials"` // in the order in which they ran, the warm-up round first
	Notes  []string     `json:"notes,omitempty"`
}

// NetArmInfo says what an arm was.
type NetArmInfo struct {
	Name string          `json:"name"`
	Peer string          `json:"peer"`           // address of the peer from there
	Node json.RawMessage `json:"node,omitempty"` // the node's spec
}

// NetTrial is one trial in one arm.
type NetTrial struct {
	Head
	*NetMeasured // nil where it failed
}

// NetMeasured are the numbers of one trial: of a stream, or of round trips.
type NetMeasured struct {
	Bits        float64 `json:"bits_per_second,omitempty"` // of TCP payload, as the receiver counted them
	CPU         float64 `json:"cpu_s_per_gb,omitempty"`    // seconds that this machine's CPUs were busy for 10⁹ bytes of payload
	Retransmits int64   `json:"retransmits,omitempty"`     // packets that were sent again
	Congestion  string  `json:"tcp_congestion,omitempty"`  // the sender's algorithm

	Trips int64   `json:"round_trips,omitempty"`
	P50   float64 `json:"p50_us,omitempty"` // microseconds
	P99   float64 `json:"p99_us,omitempty"`

	RunMillis int64 `json:"run_ms"` // the time in which it was counted
}

// NetResult is one row of the report.
type NetResult struct {
	Name     string          `json:"name"`
	Arms     []NetMedian     `json:"arms"`
	Compared []NetComparison `json:"compared"`
	Flags    []Flag          `json:"flags,omitempty"`
}

// NetMedian holds the medians of an arm.
type NetMedian struct {
	Arm    string `json:"arm"`
	Trials int    `json:"trials"`
	NetMeasured
}

// NetComparison is how much worse an arm is than the host in one measure.
type NetComparison struct {
	Arm     string      `json:"arm"`
	Measure string      `json:"measure"` // see docs/bench-json.md
	Penalty *Comparison `json:"penalty"`
}

// measure is one of the numbers that arms are compared by.
type measure struct {
	name  string // in the JSON
	label string // in the table
	of    func(NetMeasured) float64
	cost  bool // less is better: the penalty is what an arm needs more, in percent of the host's
}

// measures returns what a row is compared by, the first first.
func measures(row string) []measure {
	bits := func(m NetMeasured) float64 { return m.Bits }
	cpu := func(m NetMeasured) float64 { return m.CPU }
	switch row {
	case toPeer:
		return []measure{{"throughput", "to: speed", bits, false}, {"cpu", "to: CPU/GB", cpu, true}}
	case fromPeer:
		return []measure{{"throughput", "from: speed", bits, false}, {"cpu", "from: CPU/GB", cpu, true}}
	}
	return []measure{
		{"p50", "trip: p50", func(m NetMeasured) float64 { return m.P50 }, true},
		{"p99", "trip: p99", func(m NetMeasured) float64 { return m.P99 }, true},
	}
}

// extra turns a log ratio of costs, ln(host / arm), into percent of the host's that an arm costs more.
func extra(logRatio float64) float64 {
	p := 100 * math.Expm1(-logRatio)
	if p == 0 {
		return 0 // not −0
	}
	return p
}

// analyseNet turns trials into results. It does no I/O: a report's trials give its rows again.
func analyseNet(arms []NetArmInfo, trials []NetTrial, marginPct float64) []NetResult {
	var results []NetResult
	for _, row := range []string{toPeer, fromPeer, roundTrip} {
		by, failed := map[string]map[int]NetMeasured{}, false
		for _, t := range trials {
			if t.Row != row || t.Round == 0 {
				continue
			}
			failed = failed || t.Error != ""
			if t.NetMeasured != nil {
				if by[t.Arm] == nil {
					by[t.Arm] = map[int]NetMeasured{}
				}
				by[t.Arm][t.Round] = *t.NetMeasured
			}
		}
		if len(by) == 0 {
			continue // interrupted before it
		}
		r := NetResult{Name: row}
		for _, a := range arms {
			if m, ok := netMedian(a.Name, by[a.Name]); ok {
				r.Arms = append(r.Arms, m)
			}
			for _, of := range measures(row) {
				if c := compareNet(by[hostArm], by[a.Name], of, marginPct); a.Name != hostArm && c != nil {
					r.Compared = append(r.Compared, NetComparison{Arm: a.Name, Measure: of.name, Penalty: c})
				}
			}
		}
		r.Flags = netFlags(r, by, measures(row)[0], failed)
		results = append(results, r)
	}
	families := map[family][]*Comparison{}
	for _, r := range results {
		for _, c := range r.Compared {
			at := family{null: c.Arm == nullArm, first: c.Measure == r.Compared[0].Measure}
			families[at] = append(families[at], c.Penalty)
		}
	}
	for _, f := range families {
		correctTable(f)
	}
	return results
}

func compareNet(host, arm map[int]NetMeasured, of measure, marginPct float64) *Comparison {
	h, a := values(host, of), values(arm, of)
	b, toPct := inBlocks(h, a), penalty
	if of.cost {
		b, toPct = inBlocks(a, h), extra
	}
	return b.judge(marginPct, toPct).tested(b, marginPct)
}

func values(by map[int]NetMeasured, of measure) map[int]float64 {
	v := map[int]float64{}
	for round, m := range by {
		v[round] = of.of(m)
	}
	return v
}

func netMedian(arm string, by map[int]NetMeasured) (NetMedian, bool) {
	if len(by) == 0 {
		return NetMedian{}, false
	}
	of := func(f func(NetMeasured) float64) float64 {
		var x []float64
		for _, m := range by {
			x = append(x, f(m))
		}
		return MedianOf(x)
	}
	m := NetMedian{Arm: arm, Trials: len(by), NetMeasured: NetMeasured{
		Bits:        of(func(m NetMeasured) float64 { return m.Bits }),
		CPU:         of(func(m NetMeasured) float64 { return m.CPU }),
		Retransmits: int64(of(func(m NetMeasured) float64 { return float64(m.Retransmits) })),
		Trips:       int64(of(func(m NetMeasured) float64 { return float64(m.Trips) })),
		P50:         of(func(m NetMeasured) float64 { return m.P50 }),
		P99:         of(func(m NetMeasured) float64 { return m.P99 }),
		RunMillis:   int64(of(func(m NetMeasured) float64 { return float64(m.RunMillis) })),
	}}
	for _, one := range by {
		m.Congestion = one.Congestion
	}
	return m, true
}

func netFlags(r NetResult, by map[string]map[int]NetMeasured, first measure, failed bool) []Flag {
	var f []Flag
	if failed {
		f = append(f, TrialError)
	}
	far, all := 0, 0
	for _, arm := range by {
		var x []float64
		for _, v := range values(arm, first) {
			x = append(x, v)
		}
		far, all = far+outliers(x), all+len(x)
	}
	if 10*far > all {
		f = append(f, Disturbed)
	}
	for _, c := range r.Compared {
		if c.Arm == nullArm && (c.Penalty.Verdict == Worse || c.Penalty.Verdict == Better) {
			return append(f, ArmsDiffer)
		}
	}
	return f
}

// finish computes the rows. cause is why the series ended early, nil if it did not.
func (r *NetReport) finish(cause error) (*NetReport, error) {
	r.Ended = time.Now().UTC()
	counted := slices.ContainsFunc(r.Trials, func(t NetTrial) bool { return t.Round > 0 && t.NetMeasured != nil })
	if cause != nil && !counted {
		return nil, cause
	}
	r.Partial = cause != nil
	r.Rows = analyseNet(r.Arms, r.Trials, r.MarginPct)
	r.Carry = carryOver(hostArm, seen(r.Trials, func(t NetTrial) (Head, float64) {
		switch {
		case t.NetMeasured == nil:
			return t.Head, 0
		case t.Row == roundTrip && t.P50 > 0:
			return t.Head, 1 / t.P50
		}
		return t.Head, t.Bits
	}), false)
	r.Notes = append(r.Notes, netNotes(r)...)
	return r, cause
}

func netNotes(r *NetReport) []string {
	notes := []string{
		"speed is TCP payload; what a wire carries is about 5 % more at an MTU of 1500 bytes",
	}
	if r.OwnPeer {
		notes = append(notes, "CPU time is that of all CPUs of this machine, so both ends of each stream are in it, and whatever else ran")
	} else {
		notes = append(notes, "CPU time is that of all CPUs of this machine, not of the peer's, and whatever else ran is in it")
	}
	by := map[string]bool{}
	for _, t := range r.Trials {
		if t.NetMeasured != nil && t.Congestion != "" && t.Row == toPeer {
			by[t.Congestion] = true
		}
	}
	if len(by) > 1 {
		notes = append(notes, "host and nodes do not use the same TCP congestion control: --json has each trial's")
	}
	return append(notes, "each line stands for itself: of 20 without a difference one is expected to be called worse or better")
}

// JSON writes the report as one indented document.
func (r *NetReport) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
