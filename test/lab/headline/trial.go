package headline

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Trial is one trial of one arm.
type Trial struct {
	Session int       `json:"session"` // from 1; each boot of the machine begins a new one
	Round   int       `json:"round"`   // from 1; 0: before the rounds
	Arm     string    `json:"arm"`
	Before  string    `json:"before"` // the arm that ran just before, which is protect after a boot: see Measure
	Start   time.Time `json:"start"`
	Load    float64   `json:"load"`    // of the host of the machine, mean of a minute, at the start
	State   string    `json:"state"`   // settings of the machine's kernel
	Settled float64   `json:"settled"` // seconds after the trial until all dirty data were written
	P50     float64   `json:"p50_ms"`
	P99     float64   `json:"p99_ms"`
	Work    Work      `json:"nodes"`
	Idle    *Work     `json:"nodes_while_idle,omitempty"` // while the service was idle
	LatUS   []int64   `json:"lat_us"`                     // of each read, in the order in which they were due
}

// Work is what the batch nodes did per second, by the kernel's counters.
type Work struct {
	CPU     float64 `json:"cpu_seconds_per_second"`
	Read    float64 `json:"read_bytes_per_second"`
	Written float64 `json:"written_bytes_per_second"`
}

// disk returns bytes per second, read and written.
func (w Work) disk() float64 { return w.Read + w.Written }

// counters are the sums of the kernel's counters over the nodes' cgroups.
type counters struct {
	At            float64 // seconds
	CPU           float64 // microseconds
	Read, Written float64
}

func (c counters) add(from, to counters) counters {
	return counters{c.At + to.At - from.At, c.CPU + to.CPU - from.CPU, c.Read + to.Read - from.Read, c.Written + to.Written - from.Written}
}

func (c counters) rate() Work {
	return Work{CPU: c.CPU / 1e6 / c.At, Read: c.Read / c.At, Written: c.Written / c.At}
}

// measured is the output of trial.sh.
type measured struct {
	State   string
	Settled float64
	Phases  []struct {
		Before, After counters
		Client        *struct {
			Reads, Errors int
			Last          string  `json:"last_error"`
			LatUS         []int64 `json:"lat_us"`
		}
	}
}

func (s *Scene) trial(ctx context.Context, a Arm, seed uint64, rep *Report) (t Trial, err error) {
	if err := ctx.Err(); err != nil {
		return t, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Duration(s.o.Seconds)*time.Second+4*time.Minute)
	defer cancel()
	t = Trial{Arm: a.Name, Start: time.Now().UTC(), Load: load()}
	out, err := s.sh(ctx, s.variables(a, seed%1e9, rep)+slurmScript+trialScript)
	if err != nil {
		return t, fmt.Errorf("measure %s: %w", a.Name, err)
	}
	var got measured
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		return t, fmt.Errorf("measure %s: read its result: %w\n%s", a.Name, err, out)
	}
	t.State, t.Settled = got.State, got.Settled
	var all, idle counters
	for _, p := range got.Phases {
		all = all.add(p.Before, p.After)
		if p.Client == nil {
			idle = idle.add(p.Before, p.After)
			continue
		}
		if p.Client.Errors > 0 {
			return t, fmt.Errorf("measure %s: %d reads failed, the last one: %s", a.Name, p.Client.Errors, p.Client.Last)
		}
		t.LatUS = append(t.LatUS, p.Client.LatUS...)
	}
	if len(t.LatUS) != s.o.Reads {
		return t, fmt.Errorf("measure %s: the client made %d reads, not %d", a.Name, len(t.LatUS), s.o.Reads)
	}
	t.Work = all.rate()
	if a.Half {
		w := idle.rate()
		t.Idle = &w
	}
	t.P50, t.P99 = quantiles(t.LatUS)
	return t, rep.same(t)
}

// variables returns the shell variables that trial.sh expects.
func (s *Scene) variables(a Arm, seed uint64, rep *Report) string {
	seconds, reads, phases := s.o.Seconds, s.o.Reads, "on"
	if a.Half {
		seconds, reads, phases = seconds/2, reads/2, "on off on off"
	}
	group := "/nowhere"
	if a.Group != "" {
		group = "/sys/fs/cgroup/" + a.Group
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seconds=%d reads=%d phases='%s' settle=%g seed=%d service=%s\n", seconds, reads, phases, settle.Seconds(), seed, service)
	fmt.Fprintf(&b, "nodes=%s cg=%s with='%s' rbps=%.0f wbps=%.0f\nprotect=$(cat <<'E'\n%s\nE\n)\n", a.Nodes, group, a.With, rep.Cap.Read, rep.Cap.Written, a.By)
	if a.Job {
		fmt.Fprintf(&b, "job=1 class=%s\n", a.Class)
	}
	fmt.Fprintf(&b, "lines() {\n:\n%s\n}\n", strings.Join(a.Lines, "\n"))
	return b.String()
}

// load returns the host's one-minute load average, 0 if it is unknown.
func load() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, _ := strconv.ParseFloat(first, 64)
	return n
}

// quantiles returns p50 and p99 in milliseconds: the smallest latency that half of the reads, and 99 of 100, do not exceed.
func quantiles(us []int64) (p50, p99 float64) {
	sorted := slices.Sorted(slices.Values(us))
	at := func(pct int) float64 { return float64(sorted[max((len(sorted)*pct+99)/100-1, 0)]) / 1e3 }
	return at(50), at(99)
}
