package plan

import (
	"slices"

	"berth/internal/host/block"
	"berth/internal/limit/cgroup"
	"berth/internal/limit/devgroup"
	"berth/internal/limit/device"
	"berth/internal/limit/rlimit"
	"berth/internal/network/shape"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Running has what the plan for a change of a running node needs besides the facts of the host.
type Running struct {
	Table device.Table          // the host's devices that it has, with their present numbers
	Disks map[string]block.Disk // of the limits that it has, by name of an io entry
	Dev   mounts.Running        // where its /dev is; needed for a change of its devices
	Init  runner.Holder         // its first process; needed for a change of a machine's memory
}

// Change returns the steps that lead a running node from one spec to another, or refuses it. Both differ only in what can be
// changed live: see vnode.Difference.
func Change(old, new *vnode.Node, f Facts, r Running) ([]step.Step, error) {
	path := GroupPath(f.Layout, new)
	before, err := cgroup.Held(Plugged(old, r.Table), f.Host.Cgroups, path, r.Disks)
	if err != nil {
		return nil, err
	}
	if err := cgroup.CheckHugePages(new.HugePages, old.HugePages, f.Host.Cgroups); err != nil {
		return nil, err
	}
	after, err := cgroup.Limits(Plugged(new, r.Table), f.Host.Cgroups, path, f.Disks)
	if err != nil {
		return nil, err
	}
	// Limits of the old spec were possible when they were asked for, and are only taken away.
	oldRates, err := Rates(old, Facts{Layout: f.Layout})
	if err != nil {
		return nil, err
	}
	rates, err := Rates(new, f)
	if err != nil {
		return nil, err
	}
	rlimits, err := rlimit.Changes(old, new, f.Host, path)
	if err != nil {
		return nil, err
	}
	changes := slices.Concat(cgroup.Changes(before, after), shape.RateChanges(oldRates, rates), rlimits)
	if new.IsMachine() && old.Machine.Memory != new.Machine.Memory {
		resize, err := r.Init.(runner.Resizer).Resize(int64(old.Machine.Memory), int64(new.Machine.Memory))
		if err != nil {
			return nil, err
		}
		if Shrinks(old, new) { // what the guest gives back is not in the way of a lower limit
			changes = slices.Insert(changes, 0, resize)
		} else {
			changes = append(changes, resize)
		}
	}
	if slices.Equal(old.Devices, new.Devices) || new.IsMachine() { // a machine gets them when it starts: vnode.Diff says so
		return changes, nil
	}
	devices, err := f.deviceChanges(path, r, device.Table{Devices: f.Devices, Disks: r.Table.Disks}, f.Layout.Node(new.Name).Devices())
	return append(changes, devices...), err
}

// deviceChanges returns the steps that lead a running node from its table of devices to the next.
func (f *Facts) deviceChanges(path string, r Running, next device.Table, record string) ([]step.Step, error) {
	if r.Table.Equal(next) {
		return nil, nil
	}
	list := devgroup.Of(f.Host.Cgroups, path)
	if list == nil {
		return nil, refuse.Cannotf("mount a cgroup hierarchy", "no cgroup hierarchy of this host holds devices")
	}
	var steps []step.Step
	if rules := next.Rules(); !slices.Equal(rules, r.Table.Rules()) {
		list.Allow = rules
		steps = append(steps, &devgroup.Change{Devices: *list, Old: r.Table.Rules()})
	}
	steps = append(steps, r.Table.Nodes(next, r.Dev, list.Dir)...)
	return append(steps, &device.Record{Path: record, New: next}), nil
}

// Plugged is the node without the io entries that no disk of this host holds now: those whose disk is unplugged, and those on
// shared file systems.
func Plugged(n *vnode.Node, t device.Table) *vnode.Node {
	here := *n
	here.IO = slices.DeleteFunc(slices.Clone(n.IO), func(io vnode.IO) bool { return io.Filesystem != "" || t.IsGone(io.Name) })
	return &here
}
