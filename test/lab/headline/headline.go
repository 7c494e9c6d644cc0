// Package headline measures what Berth is for: XRootD serves files from a slow disk as a service of the host, and batch
// nodes take the CPU and the same disk beside it. How long do the server's clients wait, alone, with nodes that nobody
// held back, and with the service protected and the nodes of class batch?
//
// docs/isolation.md tells what the scene is made of and why; `make headline` writes docs/evidence/headline.*.
package headline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/test/lab"
)

// The arms.
const (
	Alone       = "alone"
	Unprotected = "unprotected" // nodes without a class, a service that nobody protects
	Protected   = "protected"   // nodes of class batch, berth protect for the service
)

// Arms are all arms, as reports list them.
var Arms = []string{Alone, Unprotected, Protected}

// Options say how long to measure. The zero value of a field means its default.
type Options struct {
	Rounds   int           // of one trial of each arm; default 12
	Trial    time.Duration // in which the client asks; default 15 s
	Rate     int           // the client's requests a second; default 30
	Engine   string        // that the protected arm's disk is switched to; default iocost
	ModelPct int           // what io.cost is told that the disk does, in percent of what it does; default 100
	Seed     uint64        // of the order of trials and the client's requests; default: a random one
	Progress func(text string)
}

// The slow disk: what QEMU lets through.
const (
	diskBytes, diskRequests = 40_000_000, 400
	diskSize                = 3 << 30
	settle                  = 2500 * time.Millisecond // from the start of the nodes' work until the client asks
)

const service = "xrootd@headline.service"

// Trial is one trial of one arm.
type Trial struct {
	Round  int       `json:"round"` // from 1
	Arm    string    `json:"arm"`
	Start  time.Time `json:"start"`
	Reads  int       `json:"reads"` // that the client made
	P50    float64   `json:"p50_ms"`
	P99    float64   `json:"p99_ms"`
	Work   Work      `json:"nodes"`
	LatMS  []float64 `json:"-"` // of each read, sorted
	Failed string    `json:"failed,omitempty"`
}

// Work is what the batch nodes got done a second, by the kernel's counters.
type Work struct {
	CPU     float64 `json:"cpu_seconds_per_second"`
	Read    float64 `json:"read_bytes_per_second"`
	Written float64 `json:"written_bytes_per_second"`
}

// Scene is a machine of the lab with the service and the nodes in it.
type Scene struct {
	lab *lab.Lab
	vm  *lab.VM
	o   Options
}

// Run boots a machine, measures all rounds, and returns the report; beside an error it returns what was measured.
func Run(ctx context.Context, o Options) (*Report, error) {
	o.complete()
	o.Progress("a virtual machine boots; emulated, that takes about 20 s")
	s, err := Boot(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Measure(ctx)
}

func (o *Options) complete() {
	if o.Rounds == 0 {
		o.Rounds = 12
	}
	if o.Trial == 0 {
		o.Trial = 15 * time.Second
	}
	if o.Engine == "" {
		o.Engine = "iocost"
	}
	if o.ModelPct == 0 {
		o.ModelPct = 100
	}
	if o.Rate == 0 {
		o.Rate = 30
	}
	if o.Seed == 0 {
		o.Seed = uint64(rand.Uint32())
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
}

// Boot makes the scene.
func Boot(ctx context.Context, o Options) (_ *Scene, err error) {
	o.complete()
	// One CPU: emulating it takes one of this machine's, and the emulated disk another.
	machine := lab.Machine{CPUs: 1, Memory: 1024, Disks: []lab.Disk{{Size: diskSize}}}
	l, err := lab.Boot(ctx, lab.Options{Machines: []lab.Machine{machine}})
	if err != nil {
		return nil, err
	}
	s := &Scene{lab: l, vm: l.VM(0), o: o}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	dir, err := os.MkdirTemp("", "berth-headline-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	berth, client := filepath.Join(dir, "berth"), filepath.Join(dir, "xrdread")
	if err := lab.BuildBerth(ctx, berth); err != nil {
		return nil, err
	}
	if err := lab.BuildTool(ctx, client, "./test/lab/headline/xrdread"); err != nil {
		return nil, err
	}
	for _, f := range []string{berth, client} {
		if err := s.vm.CopyFile(ctx, f, "/usr/local/bin/"+filepath.Base(f)); err != nil {
			return nil, err
		}
	}
	if _, err := s.sh(ctx, scene); err != nil {
		return nil, err
	}
	return s, s.vm.SlowDisk(0, diskBytes, diskRequests)
}

// Close ends the machine.
func (s *Scene) Close() { s.lab.Close() }

// sh runs a script in the machine, which must succeed, and returns what it printed.
func (s *Scene) sh(ctx context.Context, script string) (string, error) {
	r, err := s.vm.Script(ctx, "set -e\n"+script)
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("exit code %d of\n%s\n%s%s", r.Code, script, r.Out, r.Err)
	}
	return r.Out, err
}

// Measure measures all rounds. In each, the arms come in random order.
func (s *Scene) Measure(ctx context.Context) (*Report, error) {
	order := rand.New(rand.NewPCG(s.o.Seed, 0))
	rep := &Report{
		Format: Format, Started: time.Now().UTC(), Seed: s.o.Seed, Rounds: s.o.Rounds, TrialSeconds: s.o.Trial.Seconds(),
		Rate: s.o.Rate, Engine: s.o.Engine, ModelPct: s.o.ModelPct, DiskBytes: diskBytes, DiskRequests: diskRequests,
	}
	begun, done := time.Now(), 0
	for round := 1; round <= s.o.Rounds; round++ {
		for _, i := range order.Perm(len(Arms)) {
			left := "?"
			if done > 0 {
				left = (time.Since(begun) / time.Duration(done) * time.Duration(s.o.Rounds*len(Arms)-done)).Round(time.Second).String()
			}
			s.o.Progress(fmt.Sprintf("round %d of %d, %s; %s left", round, s.o.Rounds, Arms[i], left))
			t, err := s.trial(ctx, round, Arms[i], order.Uint64())
			if err != nil {
				return rep.finish(errors.Join(err, ctx.Err()))
			}
			rep.Trials = append(rep.Trials, t)
			done++
		}
	}
	return rep.finish(nil)
}

func (s *Scene) trial(ctx context.Context, round int, arm string, seed uint64) (t Trial, err error) {
	if err := ctx.Err(); err != nil {
		return t, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Trial+4*time.Minute)
	defer cancel()
	t = Trial{Round: round, Arm: arm, Start: time.Now().UTC()}
	var script strings.Builder
	fmt.Fprintf(&script, "trial=%d arm=%s settle=%g rate=%d seed=%d\n", int(s.o.Trial.Seconds()), arm, settle.Seconds(), s.o.Rate, seed%1e9)
	fmt.Fprintf(&script, "service=%s engine=%s model='", service, s.o.Engine)
	if s.o.Engine == "iocost" {
		fmt.Fprintf(&script, "rbps=%[1]d rseqiops=%[2]d rrandiops=%[2]d wbps=%[1]d wseqiops=%[2]d wrandiops=%[2]d",
			diskBytes/100*s.o.ModelPct, diskRequests*s.o.ModelPct/100)
	}
	script.WriteString("'\n")
	out, err := s.sh(ctx, script.String()+trialScript)
	if err != nil {
		return t, fmt.Errorf("measure %s: %w", arm, err)
	}
	var got struct {
		Before, After counters
		Client        struct {
			Reads, Errors int
			Last          string    `json:"last_error"`
			LatUS         []float64 `json:"lat_us"`
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		return t, fmt.Errorf("measure %s: read its result: %w\n%s", arm, err, out)
	}
	if got.Client.Errors > 0 {
		return t, fmt.Errorf("measure %s: %d reads failed, the last one: %s", arm, got.Client.Errors, got.Client.Last)
	}
	if t.Reads = got.Client.Reads; t.Reads == 0 {
		return t, fmt.Errorf("measure %s: the client read nothing", arm)
	}
	for _, us := range got.Client.LatUS {
		t.LatMS = append(t.LatMS, us/1e3)
	}
	slices.Sort(t.LatMS)
	t.P50, t.P99 = quantile(t.LatMS, 0.5), quantile(t.LatMS, 0.99)
	t.Work = got.Before.until(got.After)
	return t, nil
}

// counters are the kernel's of the nodes' groups, all together.
type counters struct {
	At            float64 // seconds
	CPU           float64 // microseconds
	Read, Written float64
}

func (c counters) until(end counters) Work {
	d := end.At - c.At
	return Work{CPU: (end.CPU - c.CPU) / 1e6 / d, Read: (end.Read - c.Read) / d, Written: (end.Written - c.Written) / d}
}

// quantile returns the smallest value that a part q of all does not exceed; sorted is in rising order.
func quantile(sorted []float64, q float64) float64 {
	i := int(q*float64(len(sorted))+0.9999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
