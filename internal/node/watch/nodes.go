package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"berth/internal/limit/device"
	"berth/internal/network/address"
	"berth/internal/network/link"
	"berth/internal/network/netserve"
	"berth/internal/node/plan"
	"berth/internal/node/records"
	"berth/internal/sys/step"
)

// Nodes finds in the records of nodes what there is to watch.
type Nodes struct{ records.Nodes }

// Moved lists the nodes of whose devices some have another number now.
func (n Nodes) Moved() (nodes []string, err error) {
	entries, err := os.ReadDir(n.Layout.RunNodes())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, e := range entries { // looked at without their locks
		t, err := device.ReadTable(n.Layout.Node(e.Name()).Devices())
		if err == nil && !t.Empty() && !t.Now(n.Host.Sys).Equal(t) {
			nodes = append(nodes, e.Name())
		}
	}
	return nodes, nil
}

// Leases returns the steps that got the leases of a node's interfaces.
func (n Nodes) Leases(name string) (all []*address.DHCP) {
	j, err := n.Live(name)
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
func (n Nodes) Announced(name string) (all []address.Announcer) {
	j, err := n.Live(name)
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
func (n Nodes) Wires(name string) []link.Wire {
	s, err := n.Stored(name)
	if err != nil {
		return nil
	}
	return plan.Wires(s.Now, plan.Facts{Layout: n.Layout})
}

// HasVF reports whether a running node has virtual functions.
func (n Nodes) HasVF(name string) bool {
	j, err := n.Live(name)
	return err == nil && link.HasVF(j.Steps())
}

// IsServed reports whether the process that serves names and relays does so for a node.
func (n Nodes) IsServed(name string) bool {
	j, err := n.Live(name)
	return err == nil && served(j) != nil
}

// ServeAgain tells the process that serves names and relays what a node needs of it; did is false for a node that needs nothing, or does
// not run. The caller holds the node's lock.
func (n Nodes) ServeAgain(ctx context.Context, name string) (did bool, err error) {
	j, err := n.Live(name)
	if err != nil || j.Phase != step.Up {
		return false, nil //nolint:nilerr // it does not run, or repair is needed first
	}
	s := served(j)
	if s == nil {
		return false, nil
	}
	return true, s.Do(ctx)
}

// served returns the step by which a node's names and relays are served; nil if none are.
func served(live *step.Journal) *netserve.Serve {
	for _, s := range live.Steps() {
		if serve, ok := s.(*netserve.Serve); ok {
			return serve
		}
	}
	return nil
}
