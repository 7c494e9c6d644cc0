package protect

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/systemd"
	"berth/internal/limit/cgroup"
	"berth/internal/limit/weight"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// standing returns the values of class storage, with those of the options in place of its own.
func (p Options) standing() vnode.Standing {
	s := vnode.Storage.Standing()
	if p.CPUWeight != 0 {
		s.CPUWeight = p.CPUWeight
	}
	if p.IOWeight != 0 {
		s.IOWeight = p.IOWeight
	}
	return s
}

// validate refuses weights that a spec may not have.
func (p Options) validate() error {
	for flag, w := range map[string]int{"--cpu-weight": p.CPUWeight, "--io-weight": p.IOWeight} {
		if w != 0 && (w < 1 || w > 10000) {
			return refuse.Invalidf("%s %d is not allowed: 1 to 10000", flag, w)
		}
	}
	switch {
	case p.Engine != "" && !p.Engine.Known():
		return refuse.Invalidf("--engine %q is not allowed: bfq, bfq-strict or iocost", p.Engine)
	case p.Engine != "" && len(p.Disks) == 0:
		return refuse.Invalidf("--engine %s: name the disks with --disk", p.Engine)
	case p.Model != "" && p.Engine != vnode.IOCost:
		return refuse.Invalidf("--model is for --engine iocost")
	}
	return nil
}

// steps returns the steps that protect a target: first to its disks, because an engine brings the files for its weights.
func (v *Services) steps(ctx context.Context, t *target, want Options) ([]step.Step, error) {
	if err := want.validate(); err != nil {
		return nil, err
	}
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return nil, err
	}
	if err := want.checkMemory(t, cg); err != nil {
		return nil, err
	}
	steps, err := v.diskSteps(t, cg, want)
	if err != nil {
		return nil, err
	}
	s := want.standing()
	switch t.kind {
	case kindUnit:
		u, err := systemd.Look(ctx, t.name)
		if err != nil {
			return nil, err
		}
		set := unitStep(t.name, s, want.MemoryLow)
		return append(steps, set), v.refuseDisabled(ctx, u.Name, u.Slice, v2Controllers(set, cg))
	case kindProcess:
		adopt, err := weight.AdoptSteps(s, cg, v.layout.StandingCgroup("pid")+"."+t.name, t.id.PID, t.id.Start, want.MemoryLow)
		return append(steps, adopt...), err
	}
	f := weight.ForeignStep(s, cg, t.group, want.MemoryLow)
	if f == nil {
		return nil, refuse.Cannotf("hand cpu and io on to it (cgroup.subtree_control of the groups above)",
			"the cgroup %s has no controller that shares CPU time or disks", t.name)
	}
	return append(steps, f), nil
}

func unitStep(name string, s vnode.Standing, low vnode.Bytes) *systemd.Set {
	set := &systemd.Set{Unit: name, Properties: []systemd.Property{
		{Name: "CPUWeight", Value: strconv.Itoa(s.CPUWeight)},
		{Name: "IOWeight", Value: strconv.Itoa(s.IOWeight)},
	}}
	if low > 0 {
		set.Properties = append(set.Properties, systemd.Property{Name: memoryLow, Value: strconv.FormatInt(int64(low), 10)})
	}
	return set
}

// checkMemory refuses to protect memory where that would be without effect.
func (p Options) checkMemory(t *target, cg host.Cgroups) error {
	switch {
	case p.MemoryLow == 0:
		return nil
	case cg.Has("memory") != "v2":
		return refuse.Cannotf("leave --memory-low out, or boot this host with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)",
			"--memory-low %s: cgroup v1, which has the memory controller here, cannot protect memory", p.MemoryLow)
	case t.kind == kindCgroup && strings.Contains(t.group, "/"):
		return refuse.Cannotf("leave --memory-low out, or protect the group at the top of the tree",
			"--memory-low %s: the groups above %s protect no memory, and without that its own would do nothing", p.MemoryLow, t.name)
	}
	return nil
}

// diskSteps switches the disks to their engine, and refuses those that nothing shares out by weight.
func (v *Services) diskSteps(t *target, cg host.Cgroups, want Options) ([]step.Step, error) {
	n := &vnode.Node{Name: t.name}
	for i, d := range want.Disks {
		io := diskOf(d)
		io.Name, io.Weight, io.Engine, io.Model = "disk"+strconv.Itoa(i), want.standing().IOWeight, want.Engine, want.Model
		n.IO = append(n.IO, io)
	}
	disks := map[string]block.Disk{}
	for _, io := range n.IO {
		d, err := block.Find("/sys", io)
		if err == nil {
			err = d.LookFor(io, cg, block.Loans(v.layout.DiskLoans()))
		}
		if err != nil {
			return nil, fmt.Errorf("io %s: %w", io.Name, err)
		}
		disks[io.Name] = d
	}
	steps, err := cgroup.Engines(n, cg, disks, block.Loans(v.layout.DiskLoans()), t.journal(v))
	if err != nil {
		return nil, err
	}
	if err := knowDisks(steps, disks); err != nil {
		return nil, err
	}
	_, err = cgroup.Limits(n, cg, "none", disks)
	if no, ok := errors.AsType[*refuse.Error](err); ok { // its remedy is for a spec
		return nil, &refuse.Error{
			Kind: no.Kind, What: no.What, Err: err,
			Remedy: "--engine bfq or --engine iocost switches the disk as long as the service is protected",
		}
	}
	return steps, err
}
