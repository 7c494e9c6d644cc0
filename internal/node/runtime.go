package node

import (
	"context"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"berth/internal/host"
	"berth/internal/ids"
	"berth/internal/mounts"
	"berth/internal/oci"
	"berth/internal/refuse"
)

// Runtime returns the fastest OCI runtime that works here, with how each did. The probe runs once a boot, and again
// when a runtime was installed, updated or removed.
func (b *Berth) Runtime(ctx context.Context) (*oci.Choice, error) {
	if err := b.makeDirs(); err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	cg, err := b.cgroups()
	if err != nil {
		return nil, err
	}
	program, err := staticProgram()
	if err != nil {
		return nil, err
	}
	t := oci.Trial{
		Dir: b.Layout.Run, Program: program, Args: []string{"--version"}, IDs: mounts.IDs{Base: ids.Last, Size: ids.Size},
		Hide:  func(runtime string) []string { return hide(runtime, cg) },
		Group: fmt.Sprintf("/%s-probe-%d", b.Layout.CgroupParent(), os.Getpid()), Mounts: mountPoints(cg),
	}
	return oci.Choose(ctx, b.Layout.RuntimeProbe(), boot, t)
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

func hide(runtime string, cg host.Cgroups) []string {
	if runtime == "crun" && cg.Mode() == "hybrid" {
		return []string{cg.V2}
	}
	return nil
}

func mountPoints(cg host.Cgroups) []string {
	all := slices.Collect(maps.Values(cg.V1))
	if cg.V2 != "" {
		all = append(all, cg.V2)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
