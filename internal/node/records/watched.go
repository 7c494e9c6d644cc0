package records

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"berth/internal/limit/device"
	"berth/internal/network/address"
	"berth/internal/network/link"
	"berth/internal/network/netserve"
	"berth/internal/node/plan"
	"berth/internal/storage/mounts"
	"berth/internal/sys/step"
)

// Dev says where a running node's /dev is.
func (r Nodes) Dev(name string) (mounts.Running, error) {
	init, err := r.LiveInit(name)
	if err != nil {
		return mounts.Running{}, err
	}
	claims, err := r.Claims(name)
	if err != nil {
		return mounts.Running{}, err
	}
	ids, err := plan.Range(claims.Steps())
	if err != nil {
		return mounts.Running{}, err
	}
	return mounts.Running{
		PID: init.First().PID, Start: init.First().Start, Owner: ids.Base, Stage: r.Layout.Node(name).Stage(),
	}, nil
}

// Moved lists the nodes of whose devices some have another number now.
func (r Nodes) Moved() (nodes []string, err error) {
	entries, err := os.ReadDir(r.Layout.RunNodes())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, e := range entries { // looked at without their locks
		t, err := device.ReadTable(r.Layout.Node(e.Name()).Devices())
		if err == nil && !t.Empty() && !t.Now(r.Host.Sys).Equal(t) {
			nodes = append(nodes, e.Name())
		}
	}
	return nodes, nil
}

// Leases returns the steps that got the leases of a node's interfaces.
func (r Nodes) Leases(name string) (all []*address.DHCP) {
	j, err := r.Live(name)
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

// Announced returns the steps that announced a node's addresses.
func (r Nodes) Announced(name string) (all []address.Announcer) {
	j, err := r.Live(name)
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

// Wires returns the connections of a node's interfaces.
func (r Nodes) Wires(name string) []link.Wire {
	s, err := r.Stored(name)
	if err != nil {
		return nil
	}
	return plan.Wires(s.Now, plan.Facts{Layout: r.Layout})
}

// HasVF reports whether a running node has virtual functions.
func (r Nodes) HasVF(name string) bool {
	j, err := r.Live(name)
	return err == nil && link.HasVF(j.Steps())
}

// IsServed reports whether the process that serves names and relays does so for a node.
func (r Nodes) IsServed(name string) bool {
	j, err := r.Live(name)
	return err == nil && slices.ContainsFunc(j.Steps(), func(s step.Step) bool { _, ok := s.(*netserve.Serve); return ok })
}
