package headline

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"berth/internal/bench/result"
)

// Format names the JSON document and its version; docs/bench-json.md describes it.
const Format = "berth-headline/2"

// Report is the result of a run. All computed fields follow from the trials; Read computes them again.
type Report struct {
	Format       string    `json:"format"`
	Partial      bool      `json:"partial"`
	Started      time.Time `json:"started"`
	Ended        time.Time `json:"ended"`
	Sessions     int       `json:"sessions"` // how often the machine was booted
	Plan         Options   `json:"plan"`
	DiskBytes    int64     `json:"disk_bytes_per_second"` // the emulated disk's throttle
	DiskRequests int64     `json:"disk_requests_per_second"`
	LatencyPct   float64   `json:"latency_margin_pct"` // for the verdicts
	WorkPct      float64   `json:"work_margin_pct"`
	Cap          Work      `json:"io_max"` // bytes a second: what the probes' nodes moved
	Arms         []Result  `json:"arms"`
	Compared     []Ratio   `json:"compared"`
	Crossed      []Ratio   `json:"cpu_x_disk,omitempty"`
	Removed      []Removed `json:"removed,omitempty"`
	CarryOver    []Carried `json:"carry_over,omitempty"`
	Probes       []Trial   `json:"probes"`
	Trials       []Trial   `json:"trials"`

	Study *result.Study `json:"study"` // follows from the trials; berth bench report shows it

	last string // the arm that ran last in this session
}

// Result is one arm. Centers are Hodges–Lehmann estimates of the logarithms over its trials, one a round.
type Result struct {
	Arm   string      `json:"arm"`
	Reads int         `json:"reads"` // of all trials
	P50   float64     `json:"p50_ms"`
	P50CI *[2]float64 `json:"p50_ci95_ms,omitempty"`
	P99   float64     `json:"p99_ms"`
	P99CI *[2]float64 `json:"p99_ci95_ms,omitempty"`
	Work  Work        `json:"nodes"`                      // means
	Idle  *Work       `json:"nodes_while_idle,omitempty"` // means
}

// begin prepares a report for more trials in a machine that has just booted. It drops the trials of an interrupted round, which
// is measured again in the same order.
func (r *Report) begin() {
	r.Sessions++
	done := r.rounds()
	r.Trials = slices.DeleteFunc(r.Trials, func(t Trial) bool { return t.Round > done })
	r.Partial, r.last = true, ""
}

// rounds returns the number of complete rounds, counted from the first.
func (r *Report) rounds() int {
	by := map[int]int{}
	for _, t := range r.Trials {
		by[t.Round]++
	}
	n := 0
	for by[n+1] == len(r.Plan.Arms) {
		n++
	}
	return n
}

// same returns an error if the kernel's settings in a trial differ from those in the arm's other trials.
func (r *Report) same(t Trial) error {
	for _, o := range slices.Concat(r.Probes, r.Trials) {
		if o.Arm == t.Arm && o.State != t.State {
			return fmt.Errorf("measure %s: the machine has %q; before it had %q", t.Arm, t.State, o.State)
		}
	}
	return nil
}

// cap sets the rates of io.max to the means of the probes.
func (r *Report) cap() { r.Cap = mean(r.Probes, func(t Trial) Work { return t.Work }) }

func mean(trials []Trial, of func(Trial) Work) (w Work) {
	n := float64(max(len(trials), 1))
	for _, t := range trials {
		one := of(t)
		w.CPU, w.Read, w.Written = w.CPU+one.CPU/n, w.Read+one.Read/n, w.Written+one.Written/n
	}
	return w
}

// of returns the trials of an arm in complete rounds, in order.
func (r *Report) of(arm string) (all []Trial) {
	whole := r.rounds()
	for _, t := range r.Trials {
		if t.Arm == arm && t.Round <= whole {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b Trial) int { return a.Round - b.Round })
	return all
}

// finish computes the report's other fields from the trials.
func (r *Report) finish(cause error) (*Report, error) {
	if len(r.Trials)+len(r.Probes) == 0 {
		return nil, cause
	}
	r.Ended, r.Partial = time.Now().UTC(), cause != nil
	r.compute()
	return r, cause
}

func (r *Report) compute() {
	r.LatencyPct, r.WorkPct = latencyMargin, workMargin
	r.Arms, r.Compared, r.Crossed, r.Removed, r.CarryOver = nil, nil, nil, nil, nil
	for _, name := range r.Plan.Arms {
		trials := r.of(name)
		if len(trials) == 0 {
			continue
		}
		a := Result{Arm: name, Work: mean(trials, func(t Trial) Work { return t.Work })}
		var p50, p99 []float64
		for _, t := range trials {
			a.Reads, p50, p99 = a.Reads+len(t.LatUS), append(p50, t.P50), append(p99, t.P99)
		}
		a.P50, a.P50CI = located(p50)
		a.P99, a.P99CI = located(p99)
		if trials[0].Idle != nil {
			w := mean(trials, func(t Trial) Work { return *t.Idle })
			a.Idle = &w
		}
		r.Arms = append(r.Arms, a)
	}
	r.compare()
	r.carry()
}

// JSON writes the report, compressed because it has many latencies.
func (r *Report) JSON(w io.Writer) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	r.Study = r.study()
	if err := json.NewEncoder(z).Encode(r); err != nil {
		return err
	}
	return z.Close()
}

// Read reads a report that JSON wrote, and computes all that follows from its trials again.
func Read(from io.Reader) (*Report, error) {
	z, err := gzip.NewReader(from)
	if err != nil {
		return nil, err
	}
	var r Report
	if err := json.NewDecoder(z).Decode(&r); err != nil {
		return nil, err
	}
	if r.Format != Format {
		return nil, fmt.Errorf("format %q: want %q", r.Format, Format)
	}
	for _, all := range [][]Trial{r.Trials, r.Probes} {
		for i := range all {
			all[i].P50, all[i].P99 = quantiles(all[i].LatUS)
		}
	}
	r.compute()
	return &r, nil
}
