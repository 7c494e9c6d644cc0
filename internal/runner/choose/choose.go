// Package choose finds the runner that starts nodes fastest on this host, by trying those that are installed.
package choose

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/runner"
	"berth/internal/storage/ids"
	"berth/internal/storage/mounts"
	"berth/internal/sys/fork"
	"berth/internal/sys/inherit"
	"berth/internal/sys/layout"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// Trials are the trials of the runners of one family.
type Trials struct {
	layout layout.Layout
	family runner.Family
}

// New returns the trials of a family, with their files in one layout. It makes nothing.
func New(l layout.Layout, family runner.Family) Trials { return Trials{l, family} }

// Fastest returns the fastest runner of the family that works here. They are tried once a boot, and again when one was
// installed, updated or removed.
func (t Trials) Fastest(ctx context.Context) (runner.Runner, error) {
	one, err := t.trial()
	if err != nil {
		return nil, err
	}
	if r := t.family.Remembered(one); r != nil {
		return r, nil
	}
	if err := inherit.Free(); err != nil { // else the runners would fail for what the caller of this process has
		return nil, err
	}
	return t.family.Choose(ctx, one)
}

// Report describes each runner of the family: whether it is installed, how fast it is, and its faults.
func (t Trials) Report(ctx context.Context) []host.Runtime {
	one, err := t.trial()
	if err == nil {
		err = inherit.Free()
	}
	if err != nil { // without root they cannot be tried, and are listed all the same
		one.Begin = func(context.Context) (runner.Bench, func() error, error) { return runner.Bench{}, nil, err }
	}
	return t.family.Report(ctx, one)
}

func (t Trials) trial() (runner.Trial, error) {
	if err := t.layout.Make(); err != nil {
		return runner.Trial{}, err
	}
	boot, err := host.New().BootID()
	if err != nil {
		return runner.Trial{}, fmt.Errorf("read the boot id: %w", err)
	}
	return runner.Trial{
		Cache: t.layout.RuntimeProbe(), Boot: boot, Dir: t.layout.Run, IDs: mounts.IDs{Base: ids.Last, Size: ids.Size}, Begin: t.bench,
	}, nil
}

// bench makes the group in which runners are tried, and keeps others from trying them at the same time.
func (t Trials) bench(ctx context.Context) (bench runner.Bench, end func() error, err error) {
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return bench, nil, err
	}
	program, err := staticProgram()
	if err != nil {
		return bench, nil, err
	}
	held, err := t.begin(ctx)
	if err != nil {
		return bench, nil, err
	}
	end = func() error {
		defer held.Close()
		return t.sweep(context.WithoutCancel(ctx))
	}
	if err := group.Make(ctx, cg, t.group()); err != nil {
		return bench, nil, errors.Join(err, end())
	}
	return runner.Bench{
		Program: program, Args: []string{"--version"}, Groups: runner.Groups{Path: t.group(), Host: cg}, Lock: held,
	}, end, nil
}

// group is the cgroup that runtimes are tried in.
func (t Trials) group() string { return t.layout.CgroupParent() + "-probe" }

// begin waits until no other process tries the runtimes, and removes the leftovers of a killed trial: one at a time, also
// because they would measure each other. A runtime whose command was killed holds the lock until it ends.
func (t Trials) begin(ctx context.Context) (*os.File, error) {
	held, err := lock.Open(ctx, t.layout.ProbeLock())
	if err != nil {
		return nil, fmt.Errorf("the probe of the runtimes: %w", err)
	}
	if err := t.sweep(ctx); err != nil {
		held.Close()
		return nil, err
	}
	return held, nil
}

// sweep removes the leftovers of killed probes. The caller holds the probe's lock.
func (t Trials) sweep(ctx context.Context) error {
	cg, err := host.ReadMounted()
	if err != nil {
		return err
	}
	if err := group.Remove(ctx, cg, t.group()); err != nil {
		return err
	}
	for _, path := range runner.TrialLeft(t.layout.Run, t.layout.RuntimeProbe()) {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove what a killed probe left: %w", err)
		}
	}
	return nil
}

// Repair removes the leftovers of killed trials. It reports whether there were any.
func (t Trials) Repair(ctx context.Context) (did bool, err error) {
	cg, err := host.ReadMounted()
	if err != nil {
		return false, err
	}
	if len(runner.TrialLeft(t.layout.Run, t.layout.RuntimeProbe())) == 0 && !group.There(cg, t.group()) {
		return false, nil
	}
	held, err := t.begin(ctx)
	if err != nil {
		return false, err
	}
	return true, held.Close()
}

// staticProgram finds a program that runs in an empty root and answers --version: berth itself as make builds it, or
// else one that Debian has on every host.
func staticProgram() (string, error) {
	for _, p := range []string{fork.Berth(), "/usr/sbin/ldconfig", "/sbin/ldconfig", "/usr/bin/busybox", "/bin/busybox"} {
		if p, err := filepath.EvalSymlinks(p); err == nil && isStatic(p) {
			return p, nil
		}
	}
	return "", refuse.Cannotf("build berth with CGO_ENABLED=0, or apt-get install busybox-static", "no static program to try the OCI runtimes with")
}

// isStatic reports whether an ELF program needs no loader.
func isStatic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}
