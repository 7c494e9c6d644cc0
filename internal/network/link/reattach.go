package link

import (
	"context"
	"fmt"
	"slices"

	"berth/internal/network/address"
	"berth/internal/network/antispoof"
	"berth/internal/network/dhcp"
	"berth/internal/network/nat"
	"berth/internal/network/shape"
	"berth/internal/network/sriov"
	"berth/internal/sys/fault"
	"berth/internal/sys/step"
)

// attached returns the interface that a step connects to the network, and whether the link or function that connects it still
// belongs to this node; "" for a step that connects none.
func attached(s step.Step) (ifname string, ours bool) {
	switch c := s.(type) {
	case *Veth:
		return c.If, true
	case *Macvlan:
		return c.If, true
	case *sriov.Move:
		return c.If, c.Held()
	}
	return "", false
}

// Reattach reconnects interfaces of a running node that have lost their connection: a virtual function whose driver was
// reloaded, so that its link is on the host or new; a port whose bridge was removed and made again, or that was taken
// out of its bridge; a macvlan that went with its parent. steps are the node's live steps, rates its present rates. An
// interface that verifies is left alone; another is set up again, with spoof check, addresses, routes and rates.
// Reattach returns the interfaces that it reconnected.
func Reattach(ctx context.Context, steps []step.Step, rates []*shape.Rate) ([]string, error) {
	var reconnected []string
	for _, s := range steps {
		ifname, ours := attached(s)
		if !ours {
			continue
		}
		before, after := around(s, ifname, steps)
		if !slices.ContainsFunc(append(before, after...), func(s step.Step) bool { return s.Verify(ctx) != nil }) {
			continue
		}
		for _, r := range rates {
			if r.If == ifname {
				before = append(before, r)
			}
		}
		for _, s := range append(before, after...) {
			if err := redo(ctx, s); err != nil {
				return reconnected, fmt.Errorf("connect %s of the node again: %w", ifname, err)
			}
		}
		reconnected = append(reconnected, ifname)
	}
	return reconnected, nil
}

// around returns the steps that set up the interface that m connects: those before its rates and those after them.
func around(m step.Step, ifname string, steps []step.Step) (before, after []step.Step) {
	vf, _ := m.(*sriov.Move)
	var checks []step.Step
	for _, s := range steps {
		if c, ok := s.(*sriov.Configure); ok && vf != nil && c.Lease == vf.Lease {
			before = append(before, c)
		}
		if c, ok := s.(*VLAN); ok && c.If == ifname {
			before = append(before, c)
		}
		if b, ok := s.(*nat.Bridge); ok {
			if v, ok := m.(*Veth); ok && v.Bridge == b.Places.Bridge && !v.Own {
				before = append(before, b)
			}
		}
		if on, ok := s.(interface{ Name() string }); !ok || on.Name() != ifname {
			continue
		}
		switch c := s.(type) {
		case *Tap, *antispoof.Step:
			checks = append(checks, c)
		case *shape.Priority, *address.Configure, *nat.Publish:
			after = append(after, c)
		case *address.DHCP:
			if l := c.Lease(); l.State(dhcp.Now()) != dhcp.Ended { // else the keeper asks for one
				after = append(after, c)
			}
		}
	}
	return append(append(before, m), checks...), after
}

func redo(ctx context.Context, s step.Step) error {
	if err := s.Do(ctx); err != nil {
		return err
	}
	fault.Point("did again " + s.Kind())
	return s.Verify(ctx)
}

// HasVF reports whether a node's live steps give it a virtual function.
func HasVF(steps []step.Step) bool {
	return slices.ContainsFunc(steps, func(s step.Step) bool { _, ok := s.(*sriov.Move); return ok })
}
