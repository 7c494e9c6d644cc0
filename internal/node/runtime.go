package node

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"berth/internal/cgroup"
	"berth/internal/ids"
	"berth/internal/mounts"
	"berth/internal/oci"
	"berth/internal/plan"
	"berth/internal/refuse"
	"berth/internal/step"
)

// Runtime returns the fastest OCI runtime that works here, with how each did. The probe runs once a boot, and again
// when a runtime was installed, updated or removed.
func (b *Berth) Runtime(ctx context.Context) (c *oci.Choice, err error) {
	if err := b.makeDirs(); err != nil {
		return nil, err
	}
	boot, err := step.BootID()
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	if c := oci.Chosen(b.Layout.RuntimeProbe(), boot); c != nil {
		return c, nil
	}
	cg, err := b.cgroups()
	if err != nil {
		return nil, err
	}
	program, err := staticProgram()
	if err != nil {
		return nil, err
	}
	lock, err := b.lockProbe(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	defer func() { err = errors.Join(err, b.sweepProbe(context.WithoutCancel(ctx))) }()
	if err := cgroup.Make(ctx, cg, b.probeGroup()); err != nil {
		return nil, err
	}
	t := oci.Trial{
		Dir: b.Layout.Run, Program: program, Args: []string{"--version"}, IDs: mounts.IDs{Base: ids.Last, Size: ids.Size},
		Adapt: func(l *oci.Launch) { plan.EnterGroups(l, cg, b.probeGroup()) },
		Group: "/" + b.probeGroup(), Lock: lock,
	}
	return oci.Choose(ctx, b.Layout.RuntimeProbe(), boot, t)
}

// probeGroup is the cgroup that runtimes are tried in.
func (b *Berth) probeGroup() string { return b.Layout.CgroupParent() + "-probe" }

// lockProbe waits until nobody tries the runtimes, and removes what a killed command left of its trial: one at a time,
// also because they would measure each other. A runtime whose command was killed holds the lock until it ends.
func (b *Berth) lockProbe(ctx context.Context) (*os.File, error) {
	lock, err := os.OpenFile(b.Layout.ProbeLock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the probe of the runtimes: %w", err)
	}
	if err := flock(ctx, lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock the probe of the runtimes: %w", err)
	}
	if err := b.sweepProbe(ctx); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// sweepProbe removes what killed probes left. The caller holds the probe's lock.
func (b *Berth) sweepProbe(ctx context.Context) error {
	cg, err := b.mounted()
	if err != nil {
		return err
	}
	if err := cgroup.Remove(ctx, cg, b.probeGroup()); err != nil {
		return err
	}
	for _, path := range oci.ProbeLeft(b.Layout.Run, b.Layout.RuntimeProbe()) {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove what a killed probe left: %w", err)
		}
	}
	return nil
}

// repairProbe is sweepProbe for where nobody holds the lock.
func (b *Berth) repairProbe(ctx context.Context) (did bool, err error) {
	cg, err := b.mounted()
	if err != nil {
		return false, err
	}
	if len(oci.ProbeLeft(b.Layout.Run, b.Layout.RuntimeProbe())) == 0 && !cgroup.There(cg, b.probeGroup()) {
		return false, nil
	}
	lock, err := b.lockProbe(ctx)
	if err != nil {
		return false, err
	}
	return true, lock.Close()
}

// staticProgram finds a program that runs in an empty root and answers --version: berth itself as make builds it, or
// else one that Debian has on every host.
func staticProgram() (string, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("find berth's own program: %w", err)
	}
	for _, p := range []string{self, "/usr/sbin/ldconfig", "/sbin/ldconfig", "/usr/bin/busybox", "/bin/busybox"} {
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

func (b *Berth) runtime(ctx context.Context) (oci.Runtime, error) {
	c, err := b.Runtime(ctx)
	if err != nil {
		return oci.Runtime{}, err
	}
	return c.Best, nil
}
