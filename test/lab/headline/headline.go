// Package headline measures what Berth is for: XRootD serves files from a slow disk as a service of the host, and batch
// nodes take the CPU and the same disk beside it. How long do the server's clients wait, alone, with nodes that nobody
// held back, with the service protected and the nodes of class batch, and with what an admin does in two lines of shell?
//
// docs/isolation.md tells what the scene is made of and why; `make headline` writes docs/evidence/headline.*.
package headline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"berth/test/lab"
)

// Options say how long to measure. The zero value of a field means its default. What is tagged is the plan of a run: it
// is fixed before the first trial and kept in the report.
type Options struct {
	Rounds   int                   `json:"rounds"`    // of one trial of each arm; default 9
	Arms     []string              `json:"arms"`      // default: all
	Reads    int                   `json:"reads"`     // that the client asks for in a trial; default 1,000
	Seconds  int                   `json:"seconds"`   // in which it does; default 20
	ModelPct int                   `json:"model_pct"` // what io.cost is told that the disk does, in percent of what it does; default 100
	Probe    int                   `json:"probes"`    // trials that say what protect lets nodes do, before the rounds; default 3
	Seed     uint64                `json:"seed"`      // of the order of trials and the client's requests; default: a random one
	Progress func(text string)     `json:"-"`
	Keep     func(r *Report) error `json:"-"` // is given the report after each trial
}

// The slow disk: what QEMU lets through.
const (
	diskBytes, diskRequests = 40_000_000, 400
	diskSize                = 3 << 30
	settle                  = 2 * time.Second // from when all nodes work until the client asks
)

const service = "xrootd@headline.service"

// Scene is a machine of the lab with the service and the nodes in it.
type Scene struct {
	lab  *lab.Lab
	vm   *lab.VM
	o    Options
	arms []Arm
}

// Run boots a machine, measures what is missing in the report, and returns it completed; nil begins a new one. Beside an
// error it returns what was measured.
func Run(ctx context.Context, o Options, earlier *Report) (*Report, error) {
	if earlier != nil {
		progress, keep := o.Progress, o.Keep
		o = earlier.Plan
		o.Progress, o.Keep = progress, keep
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	o.Progress("a virtual machine boots; emulated, that takes about 20 s")
	s, err := Boot(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Measure(ctx, earlier)
}

func (o *Options) complete() error {
	if o.Rounds == 0 {
		o.Rounds = 9
	}
	if o.Reads == 0 {
		o.Reads = 1000
	}
	if o.Seconds == 0 {
		o.Seconds = 20
	}
	if o.ModelPct == 0 {
		o.ModelPct = 100
	}
	if o.Probe == 0 {
		o.Probe = 3
	}
	if o.Seed == 0 {
		o.Seed = uint64(rand.Uint32())
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Keep == nil {
		o.Keep = func(*Report) error { return nil }
	}
	if len(o.Arms) == 0 {
		o.Arms = Names()
	}
	if o.Reads%2 != 0 || o.Seconds%2 != 0 {
		return errors.New("reads and seconds of a trial must be even: half of them come before a pause, half after it")
	}
	_, err := choose(o.Arms, "")
	return err
}

// Boot makes the scene.
func Boot(ctx context.Context, o Options) (_ *Scene, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	chosen, err := choose(o.Arms, model(o.ModelPct))
	if err != nil {
		return nil, err
	}
	// One CPU: emulating it takes one of this machine's, and the emulated disk another. It never sleeps: without nodes that
	// burn it, it would, and the arm alone would pay for waking it at each request, which is slow in an emulated machine.
	machine := lab.Machine{CPUs: 1, Memory: 1024, Disks: []lab.Disk{{Size: diskSize}}, Kernel: "idle=poll"}
	l, err := lab.Boot(ctx, lab.Options{Machines: []lab.Machine{machine}})
	if err != nil {
		return nil, err
	}
	s := &Scene{lab: l, vm: l.VM(0), o: o, arms: chosen}
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

// Measure measures the rounds that the earlier report lacks; nil: all of them. In each, the arms come in random order,
// which depends on the seed and the round alone.
func (s *Scene) Measure(ctx context.Context, earlier *Report) (*Report, error) {
	rep := &Report{
		Format: Format, Started: time.Now().UTC(), Plan: s.o, DiskBytes: diskBytes, DiskRequests: diskRequests,
	}
	if earlier != nil {
		rep = earlier
	}
	rep.begin()
	begun, done, all := time.Now(), 0, 1+s.o.Rounds*len(s.arms)+s.o.Probe-len(rep.Probes)-len(rep.Trials)
	one := func(what string, a Arm, draw uint64, round int) (Trial, error) {
		left := "?"
		if done > 0 {
			left = (time.Since(begun) / time.Duration(done) * time.Duration(all-done)).Round(time.Second).String()
		}
		s.o.Progress(fmt.Sprintf("%s: %s; %s left", what, a.Name, left))
		t, err := s.trial(ctx, a, draw, rep)
		t.Round, t.Session, t.Before = round, rep.Sessions, rep.last
		rep.last, done = a.Name, done+1
		return t, err
	}
	// The first trial after a boot finds nothing in memory yet, programs and the file's map included: it does not count.
	probe := arms(model(s.o.ModelPct))[slices.Index(Names(), Protected)]
	if _, err := one("warm-up", probe, s.o.Seed, 0); err != nil {
		return rep.finish(errors.Join(err, ctx.Err()))
	}
	for i := len(rep.Probes); i < s.o.Probe && s.capped(); i++ {
		t, err := one(fmt.Sprintf("before the rounds, %d of %d", i+1, s.o.Probe), probe, rand.New(rand.NewPCG(s.o.Seed, 0)).Uint64()+uint64(i), 0)
		if err != nil {
			return rep.finish(errors.Join(err, ctx.Err()))
		}
		rep.Probes = append(rep.Probes, t)
	}
	rep.cap()
	for round := rep.rounds() + 1; round <= s.o.Rounds; round++ {
		order := rand.New(rand.NewPCG(s.o.Seed, uint64(round)))
		for _, i := range order.Perm(len(s.arms)) {
			t, err := one(fmt.Sprintf("round %d of %d", round, s.o.Rounds), s.arms[i], order.Uint64(), round)
			if err == nil {
				rep.Trials = append(rep.Trials, t)
				err = s.o.Keep(rep)
			}
			if err != nil {
				return rep.finish(errors.Join(err, ctx.Err()))
			}
		}
	}
	return rep.finish(nil)
}

// capped: an arm has a rate, which the probes must find.
func (s *Scene) capped() bool {
	return slices.ContainsFunc(s.arms, func(a Arm) bool { return slices.Contains(a.Lines, capDisk) })
}
