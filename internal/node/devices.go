package node

import (
	"fmt"
	"slices"

	"berth/internal/block"
	"berth/internal/cgroup"
	"berth/internal/device"
	"berth/internal/host"
	"berth/internal/mounts"
	"berth/internal/plan"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

// table is what a running node has of the host's devices, where they are now; empty for one that does not run.
func (b *Berth) table(name string) (device.Table, error) {
	t, err := device.ReadTable(b.Layout.Node(name).Devices())
	if err != nil {
		return t, err
	}
	return t.Now("/sys"), nil
}

// limited lists the disks that a node has limits on, with what they are known by.
func limited(n *vnode.Node, disks map[string]block.Disk) []device.Disk {
	var all []device.Disk
	for _, io := range n.IO {
		if d, ok := disks[io.Name]; ok {
			id, _ := device.Identify("/sys", "b", d.Major, d.Minor)
			all = append(all, device.Disk{Entry: io.Name, Major: d.Major, Minor: d.Minor, ID: id})
		}
	}
	return all
}

// present returns the disks of a running node's limits, where they are now, and the node without the io entries whose
// disk is gone. A disk that came back under another name is found by what it is known by, not by its path.
func (b *Berth) present(n *vnode.Node, cg host.Cgroups, t device.Table) (*vnode.Node, map[string]block.Disk, error) {
	here := plugged(n, t)
	all := map[string]block.Disk{}
	for _, io := range here.IO {
		d, err := findDisk(io)
		i := slices.IndexFunc(t.Disks, func(d device.Disk) bool { return d.Entry == io.Name })
		if i >= 0 && (err != nil || d.Number() != t.Disks[i].Number()) {
			d, err = block.OfNumber("/sys", t.Disks[i].Major, t.Disks[i].Minor, io.Device+io.Path)
		}
		if err == nil {
			err = b.offers(io, cg, &d)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("io %s: %w", io.Name, err)
		}
		all[io.Name] = d
	}
	return here, all, nil
}

// deviceChanges returns the steps that lead a running node from one table to another, and refuses to take away what is
// in use in it.
func (b *Berth) deviceChanges(n *vnode.Node, cg host.Cgroups, old, next device.Table) ([]step.Step, error) {
	if old.Equal(next) {
		return nil, nil
	}
	in, err := b.running(n.Name)
	if err != nil {
		return nil, err
	}
	group := cgroup.DevicesStep(cg, plan.GroupPath(b.Layout, n))
	if group == nil {
		return nil, refuse.Cannotf("mount a cgroup hierarchy", "no cgroup hierarchy of this host holds devices")
	}
	var steps []step.Step
	if rules := next.Rules(); !slices.Equal(rules, old.Rules()) {
		group.Allow = rules
		steps = append(steps, &cgroup.DevicesChange{Devices: *group, Old: old.Rules()})
	}
	for _, s := range old.Nodes(next, in, group.Dir) {
		if d, ok := s.(*device.Node); ok {
			if err := d.Unused(); err != nil {
				return nil, err
			}
		}
		steps = append(steps, s)
	}
	return append(steps, &device.Record{Path: b.Layout.Node(n.Name).Devices(), New: next}), nil
}

// running says where a running node's /dev is.
func (b *Berth) running(name string) (mounts.Running, error) {
	init, err := b.liveInit(name)
	if err != nil {
		return mounts.Running{}, err
	}
	claims, err := b.claims(name)
	if err != nil {
		return mounts.Running{}, err
	}
	return mounts.Running{
		PID: init.PID, Start: init.StartTime, Owner: plan.Range(claims.Steps()).Base, Stage: b.Layout.Node(name).Stage(),
	}, nil
}

// deviceResults says what a step of berth set did to a node's devices.
func deviceResults(s step.Step) []SetResult {
	switch c := s.(type) {
	case *cgroup.DevicesChange:
		var all []SetResult
		for _, rule := range c.Allow {
			if !slices.Contains(c.Old, rule) {
				all = append(all, SetResult{Key: vnode.AddDevice, Asked: rule, ReadBack: rule, By: c.By()})
			}
		}
		for _, rule := range c.Old {
			if !slices.Contains(c.Allow, rule) {
				all = append(all, SetResult{Key: vnode.TakeDevice, Asked: rule, ReadBack: "none", By: c.By()})
			}
		}
		return all
	case *device.Node:
		if c.To == nil {
			return []SetResult{{Key: vnode.TakeDevice, Asked: c.Path, ReadBack: "none", By: "device node"}}
		}
		number := fmt.Sprintf("%s %d:%d", c.To.Type, c.To.Major, c.To.Minor)
		return []SetResult{{Key: vnode.AddDevice, Asked: c.Path, ReadBack: number, By: "device node"}}
	}
	return nil
}

// DeviceDetail is a device of a node, as the kernel has it while the node runs.
type DeviceDetail struct {
	Path       string `json:"path"`                  // inside
	Source     string `json:"source"`                // the device node on the host
	Entry      string `json:"entry"`                 // of the spec
	Number     string `json:"number,omitempty"`      // "b 8:16"; "" if the node does not run
	Access     string `json:"access,omitempty"`      // "rw"
	HonouredBy string `json:"honoured_by,omitempty"` // the mechanism that lets it through
	Holds      bool   `json:"holds"`                 // the group lets through what it should, and nothing else
	Gone       bool   `json:"gone,omitempty"`        // unplugged
	Unsafe     string `json:"unsafe,omitempty"`      // why no node should have it
	Note       string `json:"note,omitempty"`
}

func (b *Berth) deviceDetails(n *vnode.Node, cg host.Cgroups, t device.Table, running bool) []DeviceDetail {
	if !running {
		var all []DeviceDetail
		for _, e := range n.Devices {
			d := DeviceDetail{Path: e.As, Source: e.Path, Entry: e.String()}
			if d.Path == "" {
				d.Path = e.Path
			}
			if e.Unsafe {
				d.Unsafe = "the spec says so"
			}
			all = append(all, d)
		}
		return all
	}
	group := cgroup.DevicesStep(cg, plan.GroupPath(b.Layout, n))
	if group == nil {
		return nil
	}
	group.Allow = t.Rules()
	broken := group.Holds()
	in, runs := b.running(n.Name)
	var all []DeviceDetail
	for _, g := range t.Devices {
		d := DeviceDetail{
			Path: g.Path, Source: g.Source, Entry: g.Spec.String(), Number: g.Type + " " + g.Number(), Access: g.Access,
			HonouredBy: group.By(), Holds: broken == nil, Gone: g.Gone, Unsafe: g.Unsafe,
		}
		has, err := in.HasDevice(g.Path, mounts.DeviceNode{Type: g.Type, Major: g.Major, Minor: g.Minor})
		switch {
		case g.Gone:
			d.Note = "it is unplugged: the node gets it when it is back"
		case broken != nil:
			d.Note = broken.Error()
		case runs == nil && err == nil && !has:
			d.Holds, d.Note = false, "it is not in the node's /dev"
		}
		all = append(all, d)
	}
	return all
}

// unsafeDevices are those that a spec forces on a node.
func unsafeDevices(n *vnode.Node) []string {
	var all []string
	for _, d := range n.Devices {
		if d.Unsafe {
			all = append(all, d.Path)
		}
	}
	return all
}

// absent is a table of the disks that a node which does not run would not find.
func absent(n *vnode.Node) device.Table {
	var t device.Table
	for _, io := range n.IO {
		if _, err := findDisk(io); refuse.KindOf(err) == refuse.NotFound {
			t.Disks = append(t.Disks, device.Disk{Entry: io.Name, Gone: true})
		}
	}
	return t
}

// findDisk finds the disk of a limit.
func findDisk(io vnode.IO) (block.Disk, error) {
	if io.Device != "" {
		return block.Resolve("/sys", io.Device)
	}
	return block.Under("/sys", io.Path)
}

// offers looks what a disk offers for weights, where one is asked for.
func (b *Berth) offers(io vnode.IO, cg host.Cgroups, d *block.Disk) error {
	if io.Weight == 0 && io.Engine == "" {
		return nil
	}
	o := block.Offers{Loans: block.Loans(b.Layout.DiskLoans())}
	if cg.Has("blkio") == "" && cg.Has("io") == "v2" {
		o.V2 = cg.V2
	}
	return d.Look(o)
}

// disks finds the disk of each I/O limit, and what it offers for weights where one is asked for. Device numbers are found
// anew each time, never kept: they change.
func (b *Berth) disks(n *vnode.Node, cg host.Cgroups) (map[string]block.Disk, error) {
	_, all, err := b.present(n, cg, device.Table{})
	return all, err
}

// deviceFacts looks up the devices and the disks of a node. What is gone under one that runs is planned with the number
// that it had.
func (b *Berth) deviceFacts(f *plan.Facts, n *vnode.Node, known device.Table) error {
	var err error
	if _, f.Disks, err = b.present(n, f.Host.Cgroups, known); err != nil {
		return err
	}
	for _, d := range known.Disks {
		if d.Gone {
			// Its queue offers whatever was found there when the node started.
			q := block.Queue{Major: d.Major, Minor: d.Minor, Name: d.Number(), Scheduler: "bfq", BFQ: true, Cost: true, CostModel: true}
			f.Disks[d.Entry] = block.Disk{Major: d.Major, Minor: d.Minor, Name: d.Number(), Via: "unplugged", Queues: []block.Queue{q}}
		}
	}
	f.Limited = limited(n, f.Disks)
	f.Devices, err = known.Grant("/proc", "/sys", n.Devices)
	return err
}

// plugged is the node without the io entries whose disk is gone.
func plugged(n *vnode.Node, t device.Table) *vnode.Node {
	here := *n
	here.IO = slices.DeleteFunc(slices.Clone(n.IO), func(io vnode.IO) bool { return t.IsGone(io.Name) })
	return &here
}

// goneLimits shows the limits of a node on disks that are unplugged: those that it has beside those of here.
func goneLimits(n, here *vnode.Node) []cgroup.Shown {
	var all []cgroup.Shown
	have := vnode.Keys(here)
	for _, s := range vnode.Keys(n) {
		if !slices.Contains(have, s) {
			all = append(all, cgroup.Shown{
				Key: s.Key, Asked: s.Value, HonouredBy: "nothing", Note: "the disk is unplugged: the limit comes back with it", Holds: true,
			})
		}
	}
	return all
}

// goneOf says for a person what is unplugged.
func goneOf(t device.Table) []string {
	var all []string
	for _, g := range t.Devices {
		if g.Gone {
			all = append(all, "device "+g.Path+" ("+g.Source+") is unplugged")
		}
	}
	for _, d := range t.Disks {
		if d.Gone {
			all = append(all, "the disk of io."+d.Entry+" is unplugged")
		}
	}
	return all
}
