package inspect

import (
	"fmt"
	"slices"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/limit/device"
	"berth/internal/node/plan"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Table returns the host's devices that a running node has, with their present numbers; it is empty for a node that does not run. sys
// is the host's /sys.
func Table(l layout.Layout, sys, name string) (device.Table, error) {
	t, err := device.ReadTable(l.Node(name).Devices())
	if err != nil {
		return t, err
	}
	return t.Now(sys), nil
}

// Present returns the disks of a running node's limits, where they are now, and the node without the io entries whose
// disk is gone. A disk that came back under another name is found by what it is known by, not by its path.
func Present(l layout.Layout, sys string, n *vnode.Node, cg host.Cgroups, t device.Table) (*vnode.Node, map[string]block.Disk, error) {
	here := plan.Plugged(n, t)
	all := map[string]block.Disk{}
	for _, io := range here.IO {
		d, err := block.Find(sys, io)
		i := slices.IndexFunc(t.Disks, func(d device.Disk) bool { return d.Entry == io.Name })
		if i >= 0 && (err != nil || d.Number() != t.Disks[i].Number()) {
			d, err = block.OfNumber(sys, t.Disks[i].Major, t.Disks[i].Minor, io.Device+io.Path)
		}
		if err == nil {
			err = d.LookFor(io, cg, block.Loans(l.DiskLoans()))
		}
		if err != nil {
			return nil, nil, fmt.Errorf("io %s: %w", io.Name, err)
		}
		all[io.Name] = d
	}
	return here, all, nil
}

// absent is a table of the disks that a node which does not run would not find.
func absent(sys string, n *vnode.Node) device.Table {
	var t device.Table
	for _, io := range n.IO {
		if _, err := block.Find(sys, io); refuse.KindOf(err) == refuse.NotFound {
			t.Disks = append(t.Disks, device.Disk{Entry: io.Name, Gone: true})
		}
	}
	return t
}

// FindDevices adds to the facts of a node's host its devices and its disks. known are the devices of a running node: one that is
// unplugged is planned with the number that it had.
func FindDevices(f *plan.Facts, h host.Host, n *vnode.Node, known device.Table) error {
	var err error
	if _, f.Disks, err = Present(f.Layout, h.Sys, n, f.Host.Cgroups, known); err != nil {
		return err
	}
	for _, d := range known.Disks {
		if d.Gone {
			// Its queue offers whatever was found there when the node started.
			q := block.Queue{Major: d.Major, Minor: d.Minor, Name: d.Number(), Scheduler: "bfq", BFQ: true, Cost: true, CostModel: true}
			f.Disks[d.Entry] = block.Disk{Major: d.Major, Minor: d.Minor, Name: d.Number(), Via: "unplugged", Queues: []block.Queue{q}}
		}
	}
	f.Limited = limited(h.Sys, n, f.Disks)
	f.Devices, err = known.Grant(h.Proc, h.Sys, n.Devices)
	return err
}

// limited lists the disks that a node has limits on, with what they are known by.
func limited(sys string, n *vnode.Node, disks map[string]block.Disk) []device.Disk {
	var all []device.Disk
	for _, io := range n.IO {
		if d, ok := disks[io.Name]; ok {
			id, _ := device.Identify(sys, "b", d.Major, d.Minor)
			all = append(all, device.Disk{Entry: io.Name, Major: d.Major, Minor: d.Minor, ID: id})
		}
	}
	return all
}

// Gone says for a person which devices are unplugged.
func Gone(t device.Table) []string {
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

// CameAndWent says for a person which devices came and went between two looks at a running node's devices.
func CameAndWent(old, now device.Table) []string {
	var all []string
	say := func(what string, wasGone, isGone, moved bool, number string) {
		switch {
		case isGone && !wasGone:
			all = append(all, what+" is gone")
		case wasGone && !isGone:
			all = append(all, what+" is back as "+number)
		case moved:
			all = append(all, what+" is now "+number)
		}
	}
	for i, was := range old.Devices {
		is := now.Devices[i]
		say("device "+was.Path, was.Gone, is.Gone, is.Number() != was.Number() || is.ID.Seq != was.ID.Seq, is.Type+" "+is.Number())
	}
	for i, was := range old.Disks {
		is := now.Disks[i]
		say("the disk of io."+was.Entry, was.Gone, is.Gone, is.Number() != was.Number() || is.ID.Seq != was.ID.Seq, is.Number())
	}
	return all
}
