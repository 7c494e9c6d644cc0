// Package headline measures Berth's main use: XRootD serves files from a slow disk as a service of the host, while batch nodes
// use the CPU and the same disk. It compares how long the server's clients wait without nodes, with unrestricted nodes, with
// the service protected and nodes of class batch, and with two lines of shell instead.
//
// docs/isolation.md describes the scene and the reasons for it; `make headline` writes docs/evidence/headline.*.
package headline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/test/built"
	"berth/test/lab"
)

// Options say how long to measure. The zero value of a field means its default. Fields with a JSON name are the plan of a run,
// which is fixed before the first trial and kept in the report.
type Options struct {
	Rounds   int                   `json:"rounds"`    // of one trial of each arm; default 9
	Arms     []string              `json:"arms"`      // default: all that need no Slurm
	Reads    int                   `json:"reads"`     // reads of the client in a trial; default 1,000
	Seconds  int                   `json:"seconds"`   // length of a trial; default 20
	ModelPct int                   `json:"model_pct"` // speed of the disk in io.cost's model, in percent of the real one; default 100
	Probe    int                   `json:"probes"`    // trials before the rounds that measure what the nodes do under protect; default 3
	Seed     uint64                `json:"seed"`      // of the order of trials and the client's requests; default: a random one
	Progress func(text string)     `json:"-"`
	Keep     func(r *Report) error `json:"-"` // is given the report after each trial
}

// The slow disk: QEMU's throttle.
const (
	diskBytes, diskRequests = 40_000_000, 400
	diskSize                = 3 << 30
	settle                  = 2 * time.Second // time between the start of the nodes' work and the client's first read
)

const service = "xrootd@headline.service"

// Scene is a machine of the lab that runs the service and the nodes.
type Scene struct {
	lab  *lab.Lab
	vm   *lab.VM
	o    Options
	arms []Arm
}

// Run boots a machine, measures what the earlier report lacks, and returns the complete report. A nil report begins a new one.
// Run returns what was measured even with an error.
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
		chosen, _ := choose(nil, "") // without names there is nothing wrong with them
		for _, a := range chosen {
			o.Arms = append(o.Arms, a.Name)
		}
	}
	if o.Reads%2 != 0 || o.Seconds%2 != 0 {
		return errors.New("reads and seconds of a trial must be even: half of them come before a pause, half after it")
	}
	_, err := choose(o.Arms, "")
	return err
}

// Boot boots the machine and sets up the scene.
func Boot(ctx context.Context, o Options) (_ *Scene, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	chosen, err := choose(o.Arms, model(o.ModelPct))
	if err != nil {
		return nil, err
	}
	// One CPU: emulating it takes one of this machine's CPUs, and the emulated disk another. idle=poll keeps it awake: waking is slow
	// in an emulated machine, and only the arm alone, in which no node keeps the CPU busy, would pay for it.
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
	if err := built.Berth(ctx, berth); err != nil {
		return nil, err
	}
	if err := lab.BuildTool(ctx, client, "./test/lab/headline/xrdread"); err != nil {
		return nil, err
	}
	programs := []string{berth, client}
	if slices.ContainsFunc(chosen, func(a Arm) bool { return a.Job }) {
		if err := errors.Join(built.Agent(ctx, dir), built.Site(ctx, dir)); err != nil {
			return nil, err
		}
		programs = append(programs, filepath.Join(dir, "berthd"), filepath.Join(dir, "berth-site"))
	}
	for _, f := range programs {
		if err := s.vm.CopyFile(ctx, f, "/usr/local/bin/"+filepath.Base(f)); err != nil {
			return nil, err
		}
	}
	kinds := []string{"batch"} // those of the trials before the rounds
	for _, a := range chosen {
		kinds = append(kinds, a.Nodes)
	}
	if _, err := s.sh(ctx, "kinds='"+strings.Join(kinds, " ")+"'\n"+slurmScript+scene); err != nil {
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

// Measure measures the rounds that the earlier report lacks, all of them if it is nil. The arms of a round are in random order,
// which depends only on the seed and the round.
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
	// The first trial after a boot does not count: programs and file metadata are not in memory yet.
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

// capped reports whether an arm uses io.max, whose rates the probes must measure.
func (s *Scene) capped() bool {
	return slices.ContainsFunc(s.arms, func(a Arm) bool { return slices.Contains(a.Lines, capDisk) })
}
