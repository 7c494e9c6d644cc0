package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"berth/internal/bench/side"
	"berth/internal/sys/jsonfile"
)

// StreamCommand is the iperf3 call of one trial: TCP streams to the peer or back from it.
func (o *NetOptions) StreamCommand(row, peer string, run, warm time.Duration) []string {
	argv := []string{
		"iperf3", "--client", peer, "--port", strconv.Itoa(o.Port), "--json",
		"--time", seconds(run), "--omit", seconds(warm),
	}
	if o.Streams > 1 {
		argv = append(argv, "--parallel", strconv.Itoa(o.Streams))
	}
	if o.Window != "" {
		argv = append(argv, "--window", o.Window)
	}
	if row == FromPeer {
		argv = append(argv, "--reverse")
	}
	return argv
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// iperfDoc is what is read of iperf3's JSON. All counts are the client's.
type iperfDoc struct {
	Error     string `json:"error"`
	Intervals []struct {
		Sum struct {
			Bytes float64 `json:"bytes"`
		} `json:"sum"`
	} `json:"intervals"`
	End struct {
		Sent struct {
			Retransmits int64 `json:"retransmits"`
		} `json:"sum_sent"`
		Received struct {
			Bits    float64 `json:"bits_per_second"`
			Seconds float64 `json:"seconds"`
		} `json:"sum_received"`
		Congestion string `json:"sender_tcp_congestion"`
	} `json:"end"`
}

// errStream is an error that iperf3 itself reports.
type errStream struct{ said string }

func (e *errStream) Error() string { return "iperf3: " + e.said }

// parseIperf reads iperf3's JSON. cpu is what the machine's CPUs were busy meanwhile, in seconds; it is set against all
// bytes of the trial, the warm-up's too, because the CPUs worked for those as well.
func parseIperf(out []byte, cpu float64) (map[string]float64, error) {
	var doc iperfDoc
	if err := json.Unmarshal(out, &doc); err != nil {
		return nil, fmt.Errorf("read iperf3's result: %s", jsonfile.Wrong(out, err))
	}
	if doc.Error != "" {
		return nil, &errStream{doc.Error}
	}
	total := 0.0
	for _, i := range doc.Intervals {
		total += i.Sum.Bytes
	}
	r := doc.End.Received
	if !(r.Bits > 0) || !(total > 0) || math.IsInf(r.Bits, 0) || !(r.Seconds > 0 && r.Seconds < 1e9) || !(cpu >= 0) {
		return nil, errors.New("read iperf3's result: nothing was received after the warm-up")
	}
	return map[string]float64{"bits_per_second": r.Bits, "cpu_s_per_gb": cpu / (total / 1e9)}, nil
}

// Spent is the result of WithCPU, in the JSON that the command in an arm prints for the run.
type Spent struct {
	CPU    float64 `json:"cpu_s"` // seconds that the CPUs of the machine were busy
	Stdout string  `json:"stdout"`
	Error  string  `json:"error,omitempty"`
}

// WithCPU runs a command and counts the time that all CPUs of this machine were busy meanwhile: with the command, with
// interrupts and their bottom halves (which carry much of a network's work and are no process's), and with whatever else runs.
// In a node it counts the same: /proc/stat is the host's there too.
func WithCPU(ctx context.Context, argv []string) (Spent, error) {
	before, err := Busy()
	if err != nil {
		return Spent{}, err
	}
	out, failed := side.Host(ctx, argv)
	after, err := Busy()
	if err != nil {
		return Spent{}, err
	}
	s := Spent{CPU: max(after-before, 0), Stdout: string(out)}
	if failed != nil {
		s.Error = failed.Error()
	}
	return s, ctx.Err()
}

// Busy returns how long all CPUs of this machine were busy since it started, in seconds.
func Busy() (float64, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the CPU time: %w", err)
	}
	return parseBusy(string(b))
}

// parseBusy sums user, nice, system, irq and softirq of all CPUs (proc_stat(5)), in seconds. Not idle, not iowait, not
// steal, which the hypervisor took; guest is in user already.
func parseBusy(stat string) (float64, error) {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, errors.New("read the CPU time: /proc/stat does not begin with the line cpu")
	}
	var ticks uint64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the CPU time: %w", err)
		}
		ticks += n
	}
	return float64(ticks) * side.Tick, nil
}
