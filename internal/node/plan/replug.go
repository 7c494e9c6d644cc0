package plan

import (
	"errors"
	"slices"

	"berth/internal/host/block"
	"berth/internal/limit/cgroup"
	"berth/internal/limit/devgroup"
	"berth/internal/limit/device"
	"berth/internal/spec/vnode"
	"berth/internal/sys/step"
)

// Replugged is how a running node follows devices and disks that came or went.
type Replugged struct {
	Old     device.Table   // the devices that the node had
	Engines []step.Step    // for disks that came back; they last until the node stops
	Clear   []step.Step    // take limits off other disks; one that is gone meanwhile has none
	Steps   []step.Step    // on the node's group, its /dev and its limits
	Record  *device.Record // comes last
	Refused error          // the parts that cannot be planned; the rest can be done
}

// All returns all steps, in order.
func (p *Replugged) All() []step.Step {
	return append(slices.Concat(p.Engines, p.Clear, p.Steps), p.Record)
}

// Replug plans the steps by which a running node gets from the devices of r.Table to those that are plugged in now. f.Disks
// are the disks of CameBack, r.Disks are those that have the numbers of Left now.
func Replug(n *vnode.Node, f Facts, r Running, now device.Table) *Replugged {
	path, cg := GroupPath(f.Layout, n), f.Host.Cgroups
	p := &Replugged{Old: r.Table, Record: &device.Record{Path: f.Layout.Node(n.Name).Devices(), New: now}}
	if list := devgroup.Of(cg, path); list != nil && len(now.Devices) > 0 {
		list.Allow = now.Rules()
		p.Steps = append(p.Steps, list)
	}
	for _, was := range Left(r.Table, now) {
		d, ok := r.Disks[was.Entry]
		if !ok {
			continue
		}
		held, err := cgroup.Held(only(n, was.Entry), cg, path, map[string]block.Disk{was.Entry: d})
		p.Clear, p.Refused = append(p.Clear, cgroup.Changes(held, nil)...), errors.Join(p.Refused, err)
	}
	if !n.IsMachine() { // it gets the disk again when it starts: the emulator has the old one open
		p.Steps = append(p.Steps, r.Table.Nodes(now, r.Dev, "")...)
	}
	back := CameBack(n, r.Table, now)
	back.IO = slices.DeleteFunc(back.IO, func(io vnode.IO) bool { _, ok := f.Disks[io.Name]; return !ok })
	if len(back.IO) == 0 {
		return p
	}
	engines, err := cgroup.Engines(back, cg, f.Disks, block.Loans(f.Layout.DiskLoans()), f.Layout.Node(n.Name).Run)
	if err != nil { // without its engine a disk gets no limits
		p.Refused = errors.Join(p.Refused, err)
		return p
	}
	limits, err := cgroup.Limits(back, cg, path, f.Disks)
	p.Engines, p.Refused = engines, errors.Join(p.Refused, err)
	for _, l := range limits {
		p.Steps = append(p.Steps, l)
	}
	return p
}

// Left lists the disks of a table that do not have their numbers any more.
func Left(old, now device.Table) (all []device.Disk) {
	for i, was := range old.Disks {
		if is := now.Disks[i]; !was.Gone && (is.Gone || is.Number() != was.Number()) {
			all = append(all, was)
		}
	}
	return all
}

// CameBack returns the node with only those io entries whose disks have another number, or are other disks, than before.
func CameBack(n *vnode.Node, old, now device.Table) *vnode.Node {
	var entries []string
	for i, is := range now.Disks {
		if !is.Gone && is != old.Disks[i] {
			entries = append(entries, is.Entry)
		}
	}
	return only(n, entries...)
}

// only is the node with these io entries and no other limits.
func only(n *vnode.Node, entries ...string) *vnode.Node {
	few := &vnode.Node{Name: n.Name, Class: n.Class}
	for _, io := range n.IO {
		if slices.Contains(entries, io.Name) {
			few.IO = append(few.IO, io)
		}
	}
	return few
}
