package headline

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"berth/internal/bench"
)

// Format names the JSON document and its version; docs/bench-json.md describes it.
const Format = "berth-headline/1"

// Report is what a run found out.
type Report struct {
	Format       string           `json:"format"`
	Partial      bool             `json:"partial"`
	Started      time.Time        `json:"started"`
	Ended        time.Time        `json:"ended"`
	Seed         uint64           `json:"seed"`
	Rounds       int              `json:"rounds"` // planned
	TrialSeconds float64          `json:"trial_seconds"`
	Rate         int              `json:"client_reads_per_second"` // that it asks for, whatever the server does
	Engine       string           `json:"engine"`                  // that the protected arm's disk is switched to
	ModelPct     int              `json:"model_pct"`               // what io.cost is told, in percent of what the disk does
	DiskBytes    int64            `json:"disk_bytes_per_second"`   // what the emulated disk lets through
	DiskRequests int64            `json:"disk_requests_per_second"`
	Arms         []Arm            `json:"arms"`
	Removed      *Removed         `json:"removed,omitempty"`    // of the p99 that unprotected nodes add
	Worth        *bench.Protected `json:"protection,omitempty"` // what protection does to the p99
	Longer       *Removed         `json:"p99_longer_than_alone,omitempty"`
	Trials       []Trial          `json:"trials"`
}

// Arm is one arm. Centers are Hodges–Lehmann estimates over its trials.
type Arm struct {
	Arm   string      `json:"arm"`
	Reads int         `json:"reads"` // of all trials
	P50   float64     `json:"p50_ms"`
	P50CI *[2]float64 `json:"p50_ci95_ms,omitempty"`
	P99   float64     `json:"p99_ms"`
	P99CI *[2]float64 `json:"p99_ci95_ms,omitempty"`
	Work  Work        `json:"nodes"` // means
}

// Removed is a percentage with its interval.
type Removed struct {
	Pct  float64     `json:"pct"`
	CI95 *[2]float64 `json:"ci95_pct,omitempty"`
}

func (r *Report) finish(cause error) (*Report, error) {
	r.Ended, r.Partial = time.Now().UTC(), cause != nil
	if len(r.Trials) == 0 {
		return nil, cause
	}
	by := map[string]map[int]float64{}
	for _, name := range Arms {
		a, p50, p99 := Arm{Arm: name}, []float64(nil), []float64(nil)
		by[name] = map[int]float64{}
		for _, t := range r.Trials {
			if t.Arm != name {
				continue
			}
			a.Reads += t.Reads
			a.Work.CPU, a.Work.Read, a.Work.Written = a.Work.CPU+t.Work.CPU, a.Work.Read+t.Work.Read, a.Work.Written+t.Work.Written
			p50, p99 = append(p50, t.P50), append(p99, t.P99)
			by[name][t.Round] = t.P99
		}
		n := float64(len(p50))
		if n == 0 {
			continue
		}
		a.Work.CPU, a.Work.Read, a.Work.Written = a.Work.CPU/n, a.Work.Read/n, a.Work.Written/n
		a.P50, a.P50CI = located(p50)
		a.P99, a.P99CI = located(p99)
		r.Arms = append(r.Arms, a)
	}
	if r.Worth = bench.Protection(by[Alone], by[Unprotected], by[Protected]); r.Worth != nil && r.Worth.Removed != nil {
		r.Removed = &Removed{Pct: r.Worth.Removed.Pct, CI95: r.Worth.Removed.CI95}
	}
	var longer []float64
	for _, round := range slices.Sorted(maps.Keys(by[Alone])) {
		if p, ok := by[Protected][round]; ok {
			longer = append(longer, math.Log(p/by[Alone][round]))
		}
	}
	if len(longer) > 0 {
		center, ci := bench.Locate(longer)
		r.Longer = &Removed{Pct: 100 * math.Expm1(center)}
		if ci != nil {
			r.Longer.CI95 = &[2]float64{100 * math.Expm1(ci.Lo), 100 * math.Expm1(ci.Hi)}
		}
	}
	return r, cause
}

func located(sample []float64) (float64, *[2]float64) {
	center, ci := bench.Locate(sample)
	return center, pair(ci)
}

func pair(ci *bench.Interval) *[2]float64 {
	if ci == nil {
		return nil
	}
	return &[2]float64{ci.Lo, ci.Hi}
}

// JSON writes the report as one indented document.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(r)
}

// Text writes the report for a person, in lines of at most 80 columns.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured in an emulated machine (QEMU's TCG, no KVM): compare arms, not machines.\n\n")
	fmt.Fprintf(&b, "XRootD on a disk of %.0f MB/s and %d requests a second; a client asks for %d\n", float64(r.DiskBytes)/1e6, r.DiskRequests, r.Rate)
	fmt.Fprintf(&b, "random ranges of 64 KiB a second, whatever the server does. Two nodes burn CPU,\none reads (64 KiB), one writes (256 KiB), 16 requests in flight each, direct.\n")
	fmt.Fprintf(&b, "Protected: berth protect --engine %s, and class batch for the nodes.\n", r.Engine)
	fmt.Fprintf(&b, "%d rounds of %.0f s an arm in random order, seed %d, %s%s.\n\n", r.Rounds, r.TrialSeconds, r.Seed,
		r.Started.Format("2006-01-02"), map[bool]string{true: "; PARTIAL, interrupted"}[r.Partial])
	const line = "%-12s %-18s %-21s %7s %8s %8s\n"
	fmt.Fprintf(&b, line, "", "p50 ms (95 %)", "p99 ms (95 %)", "CPUs", "read", "written")
	fmt.Fprintf(&b, line, "the service", "", "", "nodes", "MB/s", "MB/s")
	for _, a := range r.Arms {
		fmt.Fprintf(&b, line, a.Arm, spread(a.P50, a.P50CI), spread(a.P99, a.P99CI), fmt.Sprintf("%.2f", a.Work.CPU),
			fmt.Sprintf("%.1f", a.Work.Read/1e6), fmt.Sprintf("%.1f", a.Work.Written/1e6))
	}
	fmt.Fprintln(&b)
	if r.Worth != nil {
		fmt.Fprintf(&b, "The protected service's p99 is %s.\n", r.Worth.Text("nodes"))
	}
	if r.Longer != nil {
		fmt.Fprintf(&b, "The protected service's p99 against alone: %s %% longer (below 0: shorter).\n", spread(r.Longer.Pct, r.Longer.CI95))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func spread(v float64, ci *[2]float64) string {
	if ci == nil {
		return digits(v)
	}
	return fmt.Sprintf("%s (%s..%s)", digits(v), digits(ci[0]), digits(ci[1]))
}

func digits(v float64) string {
	if math.Abs(v) < 99.95 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
