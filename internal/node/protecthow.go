package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth/internal/block"
	"berth/internal/cgroup"
	"berth/internal/host"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/systemd"
	"berth/internal/vnode"
)

// standing is class storage with what was asked for otherwise.
func (p Protection) standing() vnode.Standing {
	s := vnode.Storage.Standing()
	if p.CPUWeight != 0 {
		s.CPUWeight = p.CPUWeight
	}
	if p.IOWeight != 0 {
		s.IOWeight = p.IOWeight
	}
	return s
}

// validate holds the weights to what a spec may have.
func (p Protection) validate() error {
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

// protectSteps says what is to be done to a target: first to its disks, because an engine brings the files for its weights.
func (b *Berth) protectSteps(t *target, want Protection) ([]step.Step, error) {
	if err := want.validate(); err != nil {
		return nil, err
	}
	cg, err := b.cgroups()
	if err != nil {
		return nil, err
	}
	if err := want.checkMemory(t, cg); err != nil {
		return nil, err
	}
	steps, err := b.diskSteps(t, cg, want)
	if err != nil {
		return nil, err
	}
	s := want.standing()
	switch t.kind {
	case protectedUnit:
		return append(steps, unitStep(t.name, s, want.MemoryLow)), nil
	case protectedProcess:
		adopt, err := cgroup.AdoptSteps(s, cg, b.Layout.CgroupPlace("pid")+"."+t.name, t.pid, t.start, want.MemoryLow)
		return append(steps, adopt...), err
	}
	f := cgroup.ForeignStep(s, cg, t.group, want.MemoryLow)
	if f == nil {
		return nil, refuse.Cannotf("hand cpu and io on to it (cgroup.subtree_control of the groups above)",
			"the cgroup %s has no controller that shares CPU time or disks", t.name)
	}
	return append(steps, f), nil
}

func unitStep(name string, s vnode.Standing, low vnode.Bytes) step.Step {
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
func (p Protection) checkMemory(t *target, cg host.Cgroups) error {
	switch {
	case p.MemoryLow == 0:
		return nil
	case cg.Has("memory") != "v2":
		return refuse.Cannotf("leave --memory-low out, or boot this host with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)",
			"--memory-low %s: cgroup v1, which has the memory controller here, cannot protect memory", p.MemoryLow)
	case t.kind == protectedCgroup && strings.Contains(t.group, "/"):
		return refuse.Cannotf("leave --memory-low out, or protect the group at the top of the tree",
			"--memory-low %s: the groups above %s protect no memory, and without that its own would do nothing", p.MemoryLow, t.name)
	}
	return nil
}

// diskSteps switches the disks to their engine, and refuses those that nothing shares out by weight.
func (b *Berth) diskSteps(t *target, cg host.Cgroups, want Protection) ([]step.Step, error) {
	n := &vnode.Node{Name: t.name}
	for i, d := range want.Disks {
		io := vnode.IO{Name: "disk" + strconv.Itoa(i), Path: d, Weight: want.standing().IOWeight, Engine: want.Engine, Model: want.Model}
		if strings.HasPrefix(d, "/dev/") {
			io.Device, io.Path = d, ""
		}
		n.IO = append(n.IO, io)
	}
	disks, err := b.disks(n, cg)
	if err != nil {
		return nil, err
	}
	steps, err := cgroup.Engines(n, cg, disks, block.Loans(b.Layout.DiskLoans()), t.journal(b))
	if err != nil {
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

// refreshClasses gives the groups of classes that are there their values again: an engine that a disk was switched to
// may have brought the kernel a file that was not there when they were made.
func (b *Berth) refreshClasses(ctx context.Context) error {
	cg, err := b.cgroups()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range standings() {
		place := b.Layout.CgroupPlace(n.Place())
		if c := cgroup.ClassStep(&n, cg, place+"/x"); c != nil && cgroup.There(cg, place) {
			if err := c.Do(ctx); err != nil && cgroup.There(cg, place) { // else its last node has ended meanwhile
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// standings are nodes of every standing that there is a group for.
func standings() []vnode.Node {
	var all []vnode.Node
	for _, class := range []vnode.Class{"", vnode.Batch, vnode.Storage} {
		for _, idle := range []bool{false, true} {
			all = append(all, vnode.Node{Class: class, CPU: vnode.CPU{Idle: &idle}})
		}
	}
	return slices.DeleteFunc(all, func(n vnode.Node) bool { return n.Place() == "" })
}

// switchAgain switches a unit's disks to their engines after a boot, which the unit's own properties survive.
func (b *Berth) switchAgain(ctx context.Context, j *step.Journal, boot string) (did string, err error) {
	if j.Boot == boot {
		return "", nil
	}
	for _, s := range j.Steps() {
		e, ok := s.(*block.Engine)
		if !ok || e.Verify(ctx) == nil {
			continue
		}
		if err := e.Do(ctx); err != nil {
			return "", err
		}
		did = "disk " + e.Disk.Name + " switched to " + string(e.Engine) + " again: the host was booted since"
	}
	return did, nil
}

// showEngine tells what a disk was switched to.
func showEngine(ctx context.Context, e *block.Engine) cgroup.Shown {
	s := cgroup.Shown{Key: "disk " + e.Disk.Name, Asked: string(e.Engine), HonouredBy: string(e.Engine)}
	if err := e.Verify(ctx); err != nil {
		s.Note = fmt.Sprint(err)
		return s
	}
	s.ReadBack, s.Holds = string(e.Engine), true
	return s
}
