package node

import (
	"context"
	"fmt"
	"slices"

	"berth/internal/address"
	"berth/internal/block"
	"berth/internal/detail"
	"berth/internal/device"
	"berth/internal/host"
	"berth/internal/mounts"
	"berth/internal/plan"
	"berth/internal/proc"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// table is what a running node has of the host's devices, where they are now; empty for one that does not run.
func (b *Berth) table(name string) (device.Table, error) {
	t, err := device.ReadTable(b.Layout.Node(name).Devices())
	if err != nil {
		return t, err
	}
	return t.Now(b.Host.Sys), nil
}

// limited lists the disks that a node has limits on, with what they are known by.
func (b *Berth) limited(n *vnode.Node, disks map[string]block.Disk) []device.Disk {
	var all []device.Disk
	for _, io := range n.IO {
		if d, ok := disks[io.Name]; ok {
			id, _ := device.Identify(b.Host.Sys, "b", d.Major, d.Minor)
			all = append(all, device.Disk{Entry: io.Name, Major: d.Major, Minor: d.Minor, ID: id})
		}
	}
	return all
}

// present returns the disks of a running node's limits, where they are now, and the node without the io entries whose
// disk is gone. A disk that came back under another name is found by what it is known by, not by its path.
func (b *Berth) present(n *vnode.Node, cg host.Cgroups, t device.Table) (*vnode.Node, map[string]block.Disk, error) {
	here := plan.Plugged(n, t)
	all := map[string]block.Disk{}
	for _, io := range here.IO {
		d, err := block.Find(b.Host.Sys, io)
		i := slices.IndexFunc(t.Disks, func(d device.Disk) bool { return d.Entry == io.Name })
		if i >= 0 && (err != nil || d.Number() != t.Disks[i].Number()) {
			d, err = block.OfNumber(b.Host.Sys, t.Disks[i].Major, t.Disks[i].Minor, io.Device+io.Path)
		}
		if err == nil {
			err = d.LookFor(io, cg, block.Loans(b.Layout.DiskLoans()))
		}
		if err != nil {
			return nil, nil, fmt.Errorf("io %s: %w", io.Name, err)
		}
		all[io.Name] = d
	}
	return here, all, nil
}

// running says where a running node's /dev is.
func (b *Berth) running(name string) (mounts.Running, error) {
	init, err := b.LiveInit(name)
	if err != nil {
		return mounts.Running{}, err
	}
	claims, err := b.Claims(name)
	if err != nil {
		return mounts.Running{}, err
	}
	ids, err := plan.Range(claims.Steps())
	if err != nil {
		return mounts.Running{}, err
	}
	return mounts.Running{
		PID: init.First().PID, Start: init.First().Start, Owner: ids.Base, Stage: b.Layout.Node(name).Stage(),
	}, nil
}

// absent is a table of the disks that a node which does not run would not find.
func (b *Berth) absent(n *vnode.Node) device.Table {
	var t device.Table
	for _, io := range n.IO {
		if _, err := block.Find(b.Host.Sys, io); refuse.KindOf(err) == refuse.NotFound {
			t.Disks = append(t.Disks, device.Disk{Entry: io.Name, Gone: true})
		}
	}
	return t
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
	f.Limited = b.limited(n, f.Disks)
	f.Devices, err = known.Grant(b.Host.Proc, b.Host.Sys, n.Devices)
	return err
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

// leasesOf returns the steps that got the leases of a node's interfaces.
func (b *Berth) leasesOf(name string) (all []*address.DHCP) {
	j, err := b.Live(name)
	if err != nil {
		return nil
	}
	for _, s := range j.Steps() {
		if d, ok := s.(*address.DHCP); ok {
			all = append(all, d)
		}
	}
	return all
}

// announced returns the steps that announced a node's addresses.
func (b *Berth) announced(name string) (all []address.Announcer) {
	j, err := b.Live(name)
	if err != nil {
		return nil
	}
	for _, s := range j.Steps() {
		if a, ok := s.(address.Announcer); ok {
			all = append(all, a)
		}
	}
	return all
}

// readdressed calls f with the node's lock, if this is still its first process and it runs, and notes the addresses that the node
// has then.
func (b *Berth) readdressed(ctx context.Context, name string, first proc.ID, f func() error) (lives bool, err error) {
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return false, err
	}
	defer l.release()
	if init, err := b.LiveInit(name); err != nil || init.First() != first {
		return false, nil // it ended, and what it had is given back or about to be
	}
	if err := f(); err != nil {
		return true, err
	}
	s, err := b.Stored(name)
	if err != nil {
		return true, err
	}
	if st, err := b.Noted(name); err == nil && !slices.Equal(st.Addresses, detail.Addresses(b.Layout, s.Now)) {
		st.Addresses = detail.Addresses(b.Layout, s.Now)
		b.Note(st)
	}
	return true, nil
}
