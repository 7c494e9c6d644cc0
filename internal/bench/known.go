package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// KnownFormat names the JSON document of a KnownReport and its version.
const KnownFormat = "berth-bench-known/1"

// KnownReport is the evidence that a difference of known size is found, and none where there is none: repeated runs of
// three arms of which the second is slower by a known factor and the third is not.
type KnownReport struct {
	Format    string       `json:"format"`
	Partial   bool         `json:"partial"`
	Started   time.Time    `json:"started"`
	Ended     time.Time    `json:"ended"`
	Name      string       `json:"machine_name,omitempty"`
	Emulated  string       `json:"emulated,omitempty"`
	Machine   Machine      `json:"machine"`
	Fio       string       `json:"fio"`
	Mechanism string       `json:"mechanism"` // what makes the difference: "blkio.throttle"
	TruePct   float64      `json:"true_penalty_pct"`
	MarginPct float64      `json:"margin_pct"` // of the verdicts
	Command   []string     `json:"command"`
	Summary   KnownSummary `json:"summary"`
	Runs      []KnownRun   `json:"runs"`
}

// KnownRun is one run: the slower arm against the reference, and the equal one.
type KnownRun struct {
	Seed   uint64     `json:"seed"`
	Slower Comparison `json:"slower"`
	Equal  Comparison `json:"equal"`
	Host   []float64  `json:"host_iops"` // of each pair
	Node   []float64  `json:"slower_iops"`
	Null   []float64  `json:"equal_iops"`
	Promised
}

// KnownSummary counts what the runs said.
type KnownSummary struct {
	Runs       int `json:"runs"`
	Worse      int `json:"slower_called_worse"`
	Holds      int `json:"slower_interval_holds_truth"` // the 95 % interval
	Equivalent int `json:"equal_called_equivalent"`     // within the margin that was promised before the run
	Called     int `json:"equal_called_different"`      // worse or better, at that margin, that of its own spread, or the fixed one
}

// Known says what is compared in KnownDifference.
type Known struct {
	Runs      int
	TruePct   float64 // penalty of arms.Node, percent
	Mechanism string  // what makes the difference
	Name      string  // of the machine
}

// KnownDifference runs o, which has one row, again and again, each time with another order. Each run is the pilot of the
// next one; the first is that alone. Interrupted, it returns what it has, marked partial, beside the error.
func KnownDifference(ctx context.Context, k Known, o Options, arms Arms, progress func(done, total int)) (*KnownReport, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	all := &KnownReport{
		Format: KnownFormat, Started: time.Now().UTC(), Name: k.Name, Mechanism: k.Mechanism, TruePct: k.TruePct, MarginPct: o.MarginPct,
	}
	var pilot []float64
	for run := 0; run <= k.Runs; run++ {
		progress(len(all.Runs), k.Runs)
		rep, err := Run(ctx, o, arms, nil)
		if err != nil {
			all.Partial = true
			all.sum()
			return all, fmt.Errorf("measure run %d of a known difference: %w", run, err)
		}
		pilot = all.add(rep, run, pilot)
		o.Seed++
	}
	all.sum()
	return all, nil
}

// add takes over a run, but for run 0, and returns its equal pairs: the pilot of the next one.
func (a *KnownReport) add(rep *Report, number int, pilot []float64) (pairs []float64) {
	row := rep.Rows[0]
	a.Machine, a.Emulated, a.Fio, a.Command = rep.Machine, emulation(rep.Machine.CPU), rep.Fio, row.Command
	run := KnownRun{Seed: rep.Seed}
	if row.Penalty != nil && row.NullComp != nil {
		run.Slower, run.Equal = *row.Penalty, *row.NullComp
	}
	host, null := map[int]float64{}, map[int]float64{}
	for _, t := range rep.Trials {
		if t.Round == 0 || t.Measured == nil {
			continue
		}
		switch t.Arm {
		case hostArm:
			run.Host = append(run.Host, t.IOPS)
			host[t.Round] = t.IOPS
		case nodeArm:
			run.Node = append(run.Node, t.IOPS)
		case nullArm:
			run.Null = append(run.Null, t.IOPS)
			null[t.Round] = t.IOPS
		}
	}
	pairs = logRatios(host, null)
	run.Promised = promise(pilot, pairs)
	if number > 0 {
		a.Runs = append(a.Runs, run)
	}
	return pairs
}

func (a *KnownReport) sum() {
	a.Ended = time.Now().UTC()
	s := KnownSummary{Runs: len(a.Runs)}
	for _, r := range a.Runs {
		ci := r.Slower.CI95Pct
		count(&s.Worse, r.Slower.Verdict == Worse)
		count(&s.Holds, ci != nil && ci[0] <= a.TruePct && a.TruePct <= ci[1])
		count(&s.Equivalent, r.At == Equivalent)
		count(&s.Called, slices.ContainsFunc([]Verdict{r.At, r.Equal.AtCould, r.Equal.Verdict}, func(v Verdict) bool { return v == Worse || v == Better }))
	}
	a.Summary = s
}

// The criteria, as parts of the runs: of 20 they are 16, 17, 16 and at most 3. An interval of 95 % holds the truth in
// fewer than 17 of 20 runs with a probability of 1.6 %.
func (s KnownSummary) criteria() []criterion {
	least := func(part float64) int { return int(math.Ceil(part*float64(s.Runs) - 1e-9)) }
	return []criterion{
		{"the slower arm is called worse", s.Worse, least(.80), false},
		{"the true difference lies in the 95 % interval", s.Holds, least(.85), false},
		{"equal arms are called equivalent", s.Equivalent, least(.80), false},
		{"equal arms are called worse or better", s.Called, int(.15 * float64(s.Runs)), true},
	}
}

// criterion is a promise that is counted.
type criterion struct {
	what  string
	count int
	limit int
	most  bool // the limit is an upper one
}

func (c criterion) met() bool {
	if c.most {
		return c.count <= c.limit
	}
	return c.count >= c.limit
}

func (c criterion) line(of int) string {
	word, verdict := "least", "met"
	if c.most {
		word = "most"
	}
	if !c.met() {
		verdict = "MISSED"
	}
	return fmt.Sprintf("%-58s %3d of %d, at %-5s %3d: %s\n", c.what, c.count, of, word, c.limit, verdict)
}

// sumUp counts the criteria that are met.
func sumUp(all []criterion) string {
	met := 0
	for _, c := range all {
		count(&met, c.met())
	}
	return fmt.Sprintf("%d of %d criteria met\n", met, len(all))
}

// missed is an error that names the criteria that are not met, nil where all are.
func missed(all []criterion) error {
	var err error
	for _, c := range all {
		if !c.met() {
			err = errors.Join(err, fmt.Errorf("not met: %s (%d, limit %d)", c.what, c.count, c.limit))
		}
	}
	return err
}

// Check says whether the tool keeps its promise.
func (a *KnownReport) Check() error { return missed(a.Summary.criteria()) }

// Text writes the summary.
func (a *KnownReport) Text(w io.Writer) error {
	var text strings.Builder
	text.WriteString(a.Machine.firstLine(a.Name) + "\n")
	pairs := 0
	if len(a.Runs) > 0 {
		pairs = a.Runs[0].Slower.Pairs
	}
	fmt.Fprintf(&text, "%d runs of %d pairs: one arm slower by %s %% (%s on %s), one equal; margin %s %%; %s\n",
		a.Summary.Runs, pairs, short(a.TruePct), a.Mechanism, a.Machine.Device, short(a.MarginPct), a.Fio)
	for _, c := range a.Summary.criteria() {
		text.WriteString(c.line(a.Summary.Runs))
	}
	text.WriteString(sumUp(a.Summary.criteria()))
	for i, r := range a.Runs {
		promised := "-"
		if r.Pct != nil {
			promised = short(*r.Pct)
		}
		fmt.Fprintf(&text, "%2d  slower %-22s %-10s  equal %-22s at %s %%: %s\n",
			i+1, fine(r.Slower), r.Slower.Verdict, fine(r.Equal), promised, r.At)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// fine prints a penalty with two decimals, which a difference of 3 % needs.
func fine(c Comparison) string {
	if c.CI95Pct == nil {
		return fmt.Sprintf("%+.2f", c.PenaltyPct)
	}
	return fmt.Sprintf("%+.2f (%+.2f..%+.2f)", c.PenaltyPct, c.CI95Pct[0], c.CI95Pct[1])
}

// JSON writes the whole document, one line.
func (a *KnownReport) JSON(w io.Writer) error { return json.NewEncoder(w).Encode(a) }
