package report

import (
	"fmt"
	"slices"
	"time"

	"berth/internal/bench"
)

// This file converts the other kinds of evidence to studies, so that they can be shown in every form.

var iops = bench.Measure{Name: "iops", Title: "requests", Unit: "1/s", Compared: true}

// ofExplain converts a report of berth bench explain to two experiments: the row as it is, and the suspects.
func ofExplain(x *bench.Explained) *bench.Study {
	by := map[string][]float64{}
	for _, t := range x.Trials {
		if t.Round > 0 && t.Measured != nil {
			by[t.Arm] = append(by[t.Arm], t.IOPS)
		}
	}
	arm := func(name, as string) bench.ArmMedian {
		return bench.ArmMedian{Arm: as, Trials: len(by[name]), Values: map[string]float64{"iops": bench.MedianOf(by[name])}}
	}
	design := bench.Design{Pairs: x.Pairs, RunMillis: x.RunMillis, WarmMillis: x.Warm}
	targets := []bench.DiskUsed{{Target: x.Target, Disk: x.Machine.Disk}}
	row := bench.Experiment{
		About:   bench.About{Name: "row", Title: x.Row.Name, Question: "What does the node lose as it is?", Measures: []bench.Measure{iops}},
		Arms:    []bench.ArmInfo{{Name: "host", Title: "host"}, {Name: nullArm, Title: "host again"}, {Name: "node", Title: "container node", Node: x.Node}},
		Targets: targets, Design: design, Rows: []bench.StudyRow{diskRow(x.Row)}, Carry: x.Carry, Notes: []string{x.Answer},
	}
	suspects := bench.Experiment{
		About: bench.About{
			Name: "suspects", Title: "What carries it", Question: "Which ingredient carries a loss?", Setting: "one ingredient at a time; worse: it carries a loss",
			Measures: []bench.Measure{iops},
		},
		Arms:   []bench.ArmInfo{{Name: "without", Title: "without it"}, {Name: "with", Title: "with it"}},
		Design: design, Targets: targets, Notes: x.Notes,
	}
	for _, s := range x.Suspects {
		r := bench.StudyRow{Name: s.Name}
		if by[s.With] != nil && by[s.Without] != nil {
			r.Arms = []bench.ArmMedian{arm(s.Without, "without"), arm(s.With, "with")}
		}
		if s.Loss != nil {
			r.Compared = []bench.StudyComparison{{Arm: "with", Measure: "iops", Penalty: s.Loss, P: s.P, PEquiv: s.PEquiv, Corrected: s.Corrected}}
		}
		suspects.Rows = append(suspects.Rows, r)
		suspects.Notes = append(suspects.Notes, s.Name+": "+s.What)
	}
	return &bench.Study{
		Partial: x.Partial, Emulated: x.Emulated, Started: x.Started, Ended: x.Ended, Seed: x.Seed, MarginPct: x.MarginPct, Machine: x.Machine,
		Tools: []bench.Tool{{Name: "fio", Version: x.Fio}}, Experiments: []bench.Experiment{row, suspects},
	}
}

// ofKnown converts the evidence on a known difference. Each run is a row.
func ofKnown(k *bench.KnownReport) *bench.Study {
	e := bench.Experiment{
		About: bench.About{
			Name: "known", Title: "A difference of known size", Question: fmt.Sprintf("Is a loss of %s %% found, and none where there is none?", figure(k.TruePct)),
			Setting: "reads that the kernel caps (" + k.Mechanism + "); each run is judged by itself", Measures: []bench.Measure{iops},
		},
		Arms:    []bench.ArmInfo{{Name: "host", Title: "the reference"}, {Name: nullArm, Title: "an equal arm"}, {Name: "node", Title: "the slower arm"}},
		Targets: []bench.DiskUsed{{Target: bench.Target{Kind: "device"}, Disk: k.Machine.Disk}},
	}
	for i, run := range k.Runs {
		e.Design.Pairs = max(e.Design.Pairs, run.Slower.Pairs)
		r := bench.StudyRow{Name: fmt.Sprintf("run %d", i+1), Command: k.Command}
		for _, a := range []struct {
			arm    string
			values []float64
		}{{"host", run.Host}, {nullArm, run.Null}, {"node", run.Node}} {
			r.Arms = append(r.Arms, bench.ArmMedian{Arm: a.arm, Trials: len(a.values), Values: map[string]float64{"iops": bench.MedianOf(a.values)}})
		}
		for arm, c := range map[string]*bench.Comparison{nullArm: &run.Equal, "node": &run.Slower} {
			r.Compared = append(r.Compared, bench.StudyComparison{Arm: arm, Measure: "iops", Penalty: c})
		}
		slices.SortFunc(r.Compared, func(a, b bench.StudyComparison) int { return len(b.Arm) - len(a.Arm) })
		e.Rows = append(e.Rows, r)
	}
	return &bench.Study{
		Partial: k.Partial, Emulated: k.Emulated, Started: k.Started, Ended: k.Ended, MarginPct: k.MarginPct, Machine: k.Machine,
		Tools: []bench.Tool{{Name: "fio", Version: k.Fio}}, Experiments: []bench.Experiment{e},
	}
}

// ofStart converts a report of make bench-start.
func ofStart(r *bench.StartReport) *bench.Study { return r.Study() }

// scene is the part of docs/evidence/headline*.json that the report reads. Only tests write that format.
type scene struct {
	Partial bool      `json:"partial"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Seed    uint64    `json:"seed"`
	Seconds float64   `json:"trial_seconds"`
	Trials  []struct {
		Session int      `json:"session"`
		Round   int      `json:"round"` // 0: before the counted rounds
		Arm     string   `json:"arm"`
		Before  string   `json:"before"` // the arm that ran just before
		P50     *float64 `json:"p50_ms"`
		P99     *float64 `json:"p99_ms"`
	} `json:"trials"`
}

// ofHeadline converts the evidence on a storage service beside batch nodes. The reference is the arm "alone".
func ofHeadline(h *scene) *bench.Study {
	e := bench.Experiment{
		About: bench.About{
			Name: "headline", Title: "A storage service beside batch nodes", Question: "How much longer do its clients wait than when it is alone?",
			Setting: "in an emulated machine: compare arms, not milliseconds",
			Measures: []bench.Measure{
				{Name: "p99_ms", Title: "p99 latency", Unit: "ms", LessIsBetter: true, Compared: true},
				{Name: "p50_ms", Title: "p50 latency", Unit: "ms", LessIsBetter: true, Compared: true},
			},
		},
		Rows:   []bench.StudyRow{{Name: "reads"}},
		Design: bench.Design{RunMillis: int64(h.Seconds * 1000)},
	}
	arm := func(name string) {
		if !slices.ContainsFunc(e.Arms, func(a bench.ArmInfo) bool { return a.Name == name }) {
			e.Arms = append(e.Arms, bench.ArmInfo{Name: name, Title: name})
		}
	}
	arm("alone") // the reference
	for i, t := range h.Trials {
		if t.P50 == nil || t.P99 == nil {
			continue
		}
		arm(t.Arm)
		e.Design.Pairs = max(e.Design.Pairs, t.Round)
		e.Trials = append(e.Trials, bench.StudyTrial{
			Head: bench.Head{Seq: i + 1, Row: "reads", Round: t.Round, Arm: t.Arm, After: t.Before}, Session: max(t.Session, 1), Values: map[string]float64{"p50_ms": *t.P50, "p99_ms": *t.P99},
		})
	}
	s := &bench.Study{
		Partial: h.Partial, Emulated: "QEMU", Started: h.Started, Ended: h.Ended, Seed: h.Seed, MarginPct: 5, Experiments: []bench.Experiment{e},
	}
	s.Judge()
	s.Experiments[0].Trials = nil // the conditions of these trials are not recorded
	return s
}

// sharesFormat begins the format name of docs/evidence/weights-*.json. Only tests write that format.
const sharesFormat = "berth-shares/"

// shares is the part of docs/evidence/weights-*.json that the report reads.
type shares struct {
	Rows []struct {
		Kind    string      `json:"kind"` // share: Asked is percent of the total; else bytes a second of the first node
		Name    string      `json:"name"`
		Asked   []float64   `json:"asked"`
		Started time.Time   `json:"started"`
		Got     [][]float64 `json:"bytes_per_second"` // by window, then by node
	} `json:"rows"`
}

// ofShares converts the evidence on shares of a disk: medians over windows beside the values asked for.
func ofShares(d *shares) *bench.Study {
	s := &bench.Study{}
	for _, kind := range []struct{ name, unit, title string }{{"share", "%", "Shares of a disk by weight"}, {"rate", "B/s", "Rates"}} {
		e := bench.Experiment{
			About: bench.About{
				Name: kind.name + "s", Title: kind.title, Question: "What does a node get of what was asked?",
				Measures: []bench.Measure{{Name: kind.name, Title: kind.name, Unit: kind.unit}},
			},
			Arms: []bench.ArmInfo{{Name: "asked", Title: "what was asked"}, {Name: "node", Title: "what the node got"}},
		}
		for _, r := range d.Rows {
			if s.Started.IsZero() || r.Started.Before(s.Started) {
				s.Started, s.Ended = r.Started, r.Started
			}
			if (r.Kind == "share") != (kind.name == "share") {
				continue
			}
			nodes := len(r.Asked)
			if r.Kind != "share" {
				nodes = min(nodes, 1) // only the first node has a rate
			}
			for i := range nodes {
				var got []float64
				for _, window := range r.Got {
					if i >= len(window) {
						continue
					}
					v, all := window[i], 0.0
					for _, x := range window {
						all += x
					}
					if r.Kind == "share" && all > 0 {
						v = 100 * v / all
					}
					got = append(got, v)
				}
				e.Design.Pairs = max(e.Design.Pairs, len(got))
				e.Rows = append(e.Rows, bench.StudyRow{Name: fmt.Sprintf("%s, node %d", r.Name, i+1), Arms: []bench.ArmMedian{
					{Arm: "asked", Trials: len(got), Values: map[string]float64{kind.name: r.Asked[i]}},
					{Arm: "node", Trials: len(got), Values: map[string]float64{kind.name: bench.MedianOf(got)}},
				}})
			}
		}
		if len(e.Rows) > 0 {
			s.Experiments = append(s.Experiments, e)
		}
	}
	return s
}
