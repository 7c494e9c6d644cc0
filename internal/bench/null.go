package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// NullFormat names the JSON document of a NullReport and its version.
const NullFormat = "berth-bench-null/1"

// NullReport is the evidence on how often the tool cries wolf: rows in which the host was measured against itself.
type NullReport struct {
	Format   string      `json:"format"`
	Partial  bool        `json:"partial"`
	Started  time.Time   `json:"started"`
	Ended    time.Time   `json:"ended"`
	Name     string      `json:"machine_name,omitempty"`
	Emulated string      `json:"emulated,omitempty"` // what emulates the CPU
	Machine  Machine     `json:"machine"`
	Fio      string      `json:"fio"`
	Margin   float64     `json:"margin_pct"` // of the verdicts in ByMargin
	Summary  NullSummary `json:"summary"`
	Rows     []NullRow   `json:"rows"`
	Commands [][]string  `json:"commands"` // of the kinds of rows
}

// NullRow is one comparison of the host with itself.
type NullRow struct {
	Row    string     `json:"row"`
	Run    int        `json:"run"`       // rows of one run were interleaved, as in any report
	Seed   uint64     `json:"seed"`      // of that run's order
	Host   []float64  `json:"host_iops"` // of each pair
	Null   []float64  `json:"null_iops"`
	Result Comparison `json:"result"`
	Promised
}

// Promised is what a run said before it began: the margin that so many pairs will decide, by MarginFor with the same row's
// pairs of the run before as the pilot; and what the run then said at this margin, by the signed-rank interval, whose width the promise is about. The margin of Comparison.Could is
// read off the run's own spread: at that one, what is undecided is rare by construction.
type Promised struct {
	Pct *float64 `json:"promised_pct,omitempty"`        // percent; nil if the pilot was too short
	At  Verdict  `json:"verdict_at_promised,omitempty"` // undecided without a margin
}

func promise(pilot, pairs []float64) Promised {
	p := Promised{At: Undecided}
	if pct, ok := MarginFor(pilot, len(pairs)); ok {
		p.Pct, p.At = &pct, decide(estimate(pairs), logMargin(pct))
	}
	return p
}

// NullSummary counts verdicts.
type NullSummary struct {
	Rows            int        `json:"rows"`
	Called          int        `json:"interval_excludes_zero"`     // the 95 % interval excludes no difference: 5 % expected at most
	CalledPromised  int        `json:"called_at_promised"`         // worse or better at the margin that was promised before
	DecidedPromised int        `json:"decided_at_promised"`        // not undecided at it: 90 % expected
	Promised        [3]float64 `json:"promised_pct_quartiles"`     // of these margins: lower quartile, median, upper quartile
	CalledAtCould   int        `json:"called_at_could_decide"`     // worse or better at the margin read off the row's own spread
	DecidedAtCould  int        `json:"decided_at_could_decide"`    // not undecided at it: nearly all, by construction
	CalledAtMargin  int        `json:"called_at_margin"`           // worse or better at the fixed margin
	DecidedAtMargin int        `json:"decided_at_margin"`          // not undecided at it
	Could           [3]float64 `json:"could_decide_pct_quartiles"` // of the margins read off the spread
}

// NullRows repeats quick runs of the host against itself until it has n rows. Each run has an order of its own, from
// o.Seed on; set o.Pairs. Each run is the pilot of the next one; the first is that alone. Interrupted, it returns what it has, marked partial, beside the error.
func NullRows(ctx context.Context, n int, o Options, arms Arms, progress func(done, total int)) (*NullReport, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	arms.Node = nil
	all := &NullReport{Format: NullFormat, Started: time.Now().UTC(), Margin: o.MarginPct}
	pilot := map[string][]float64{}
	for run := 0; len(all.Rows) < n; run++ {
		progress(len(all.Rows), n)
		rep, err := Run(ctx, o, arms, nil)
		if rep != nil && err == nil { // a partial run has rows with fewer pairs: they are not what is counted
			all.add(rep, run, pilot)
		}
		if err != nil {
			all.Partial = true
			all.sum()
			return all, fmt.Errorf("measure run %d of null rows: %w", run, err)
		}
		o.Seed++
	}
	all.Rows = all.Rows[:n]
	all.sum()
	return all, nil
}

// add takes over the rows of a run, but for run 0, and makes it the pilot of the next one.
func (a *NullReport) add(rep *Report, run int, pilot map[string][]float64) {
	a.Machine, a.Emulated, a.Fio, a.Commands = rep.Machine, emulation(rep.Machine.CPU), rep.Fio, nil
	for _, r := range rep.Rows {
		a.Commands = append(a.Commands, r.Command)
		row := NullRow{Row: r.Name, Run: run, Seed: rep.Seed}
		host := map[int]float64{} // by round: a block in which a trial failed is left out
		for _, t := range rep.Trials {
			if t.Row == r.Name && t.Arm == hostArm && t.Measured != nil {
				host[t.Round] = t.IOPS
			}
		}
		for _, t := range rep.Trials {
			if h := host[t.Round]; t.Row == r.Name && t.Arm == nullArm && t.Round > 0 && t.Measured != nil && h > 0 {
				row.Host, row.Null = append(row.Host, h), append(row.Null, t.IOPS)
			}
		}
		if r.NullComp != nil {
			row.Result = *r.NullComp
		}
		pairs := blocks{row.Host, row.Null}.logs()
		row.Promised = promise(pilot[r.Name], pairs)
		pilot[r.Name] = pairs
		if run > 0 {
			a.Rows = append(a.Rows, row)
		}
	}
}

// JudgeAgain judges each row anew from the pairs that were kept, and gives it the promise that the run before would have made: rows that were
// measured before there were promises. Those of the first run have none.
func (a *NullReport) JudgeAgain() {
	pilot := map[string][]float64{}
	for i := range a.Rows {
		r := &a.Rows[i]
		b := blocks{r.Host, r.Null}
		if c := b.judge(a.Margin, penalty); c != nil {
			r.Result = *c
		}
		r.Promised = promise(pilot[r.Row], b.logs())
		pilot[r.Row] = b.logs()
	}
	ended := a.Ended
	a.sum()
	a.Ended = ended
}

func (a *NullReport) sum() {
	a.Ended = time.Now().UTC()
	s := NullSummary{Rows: len(a.Rows)}
	var could, promised []float64
	for _, r := range a.Rows {
		c := r.Result
		count(&s.Called, c.CI95Pct != nil && (c.CI95Pct[0] > 0 || c.CI95Pct[1] < 0))
		count(&s.CalledAtCould, c.AtCould == Worse || c.AtCould == Better)
		count(&s.DecidedAtCould, c.AtCould != Undecided)
		count(&s.CalledAtMargin, c.Verdict == Worse || c.Verdict == Better)
		count(&s.DecidedAtMargin, c.Verdict != Undecided)
		count(&s.CalledPromised, r.At == Worse || r.At == Better)
		count(&s.DecidedPromised, r.At != Undecided)
		if c.Could != nil {
			could = append(could, *c.Could)
		}
		if r.Pct != nil {
			promised = append(promised, *r.Pct)
		}
	}
	s.Could, s.Promised = quartiles(could), quartiles(promised)
	a.Summary = s
}

func quartiles(v []float64) [3]float64 {
	n := len(v)
	if n == 0 {
		return [3]float64{}
	}
	slices.Sort(v)
	return [3]float64{v[n/4], MedianOf(v), v[(3*n)/4]}
}

func count(n *int, yes bool) {
	if yes {
		*n++
	}
}

// The promises: at most 8 % of the rows called worse or better (16 of 200: with 5 % expected, chance alone exceeds that in
// 3 of 100 such experiments), at least 80 % decided at the margin that was promised before.
func (s NullSummary) criteria() []criterion {
	most, least := 8*s.Rows/100, (80*s.Rows+99)/100
	return []criterion{
		{"called worse or better at the margin promised before", s.CalledPromised, most, true},
		{"called worse or better at the margin of its own spread", s.CalledAtCould, most, true},
		{"called worse or better at the fixed margin", s.CalledAtMargin, most, true},
		{"decided at the margin promised before", s.DecidedPromised, least, false},
	}
}

// Check says whether the rows keep the tool's promises.
func (a *NullReport) Check() error { return missed(a.Summary.criteria()) }

// Text writes the summary.
func (a *NullReport) Text(w io.Writer) error {
	s := a.Summary
	var text strings.Builder
	text.WriteString(a.Machine.firstLine(a.Name) + "\n")
	fmt.Fprintf(&text, "%d rows of the host against itself (%s, %s); the fixed margin is %s %%\n", s.Rows, a.Machine.Device, a.Fio, short(a.Margin))
	for _, c := range s.criteria() {
		text.WriteString(c.line(s.Rows))
	}
	text.WriteString(sumUp(s.criteria()))
	fmt.Fprintf(&text, "95 %% interval without 0: %d; decided at the fixed margin: %d, at that of its own spread: %d\n", s.Called, s.DecidedAtMargin, s.DecidedAtCould)
	fmt.Fprintf(&text, "quartiles of the margins promised: %s, %s, %s %%; of those of the rows' own spread: %s, %s, %s %%\n",
		short(s.Promised[0]), short(s.Promised[1]), short(s.Promised[2]), short(s.Could[0]), short(s.Could[1]), short(s.Could[2]))
	_, err := io.WriteString(w, text.String())
	return err
}

// JSON writes the whole document, one line.
func (a *NullReport) JSON(w io.Writer) error { return json.NewEncoder(w).Encode(a) }
