package link

import (
	"context"
	"fmt"

	"berth/internal/dhcp"
	"berth/internal/step"
)

// attachment is a step that connects an interface of a node to the network.
type attachment interface {
	step.Step
	ifname() string
	holds() bool // its resources still belong to this node
}

func (i *Inside) ifname() string { return i.If }
func (*Veth) holds() bool        { return true }
func (*Macvlan) holds() bool     { return true }
func (m *VFMove) holds() bool    { return m.mine() }

// Reattach reconnects interfaces of a running node that have lost their connection: a virtual function whose driver was
// reloaded, so that its link is on the host or new; a port whose bridge was removed and made again, or that was taken
// out of its bridge; a macvlan that went with its parent. steps are the node's live steps, rates its present rates. An
// interface that verifies is left alone; another is set up again, with spoof check, addresses, routes and rates.
// Reattach returns the interfaces that it reconnected.
func Reattach(ctx context.Context, steps []step.Step, rates []*Rate) ([]string, error) {
	var mended []string
	for _, s := range steps {
		m, ok := s.(attachment)
		if !ok || !m.holds() {
			continue
		}
		before, after := around(m, steps)
		if verified(ctx, append(before, after...)) {
			continue
		}
		for _, r := range rates {
			if r.If == m.ifname() {
				before = append(before, r)
			}
		}
		for _, s := range append(before, after...) {
			if err := again(ctx, s); err != nil {
				return mended, fmt.Errorf("connect %s of the node again: %w", m.ifname(), err)
			}
		}
		mended = append(mended, m.ifname())
	}
	return mended, nil
}

// around returns the steps that set up the interface of m: those before its rates and those after them.
func around(m attachment, steps []step.Step) (before, after []step.Step) {
	vf, _ := m.(*VFMove)
	var checks []step.Step
	for _, s := range steps {
		switch c := s.(type) {
		case *VFConfigure:
			if vf != nil && c.Lease == vf.Lease {
				before = append(before, c)
			}
		case *AntiSpoof:
			if c.If == m.ifname() {
				checks = append(checks, c)
			}
		case *Priority:
			if c.If == m.ifname() {
				after = append(after, c)
			}
		case *Configure:
			if c.If == m.ifname() {
				after = append(after, c)
			}
		case *DHCP:
			if l := c.Lease(); c.If == m.ifname() && l.State(dhcp.Now()) != dhcp.Ended { // else the keeper asks for one
				after = append(after, c)
			}
		}
	}
	return append(append(before, m), checks...), after
}

func again(ctx context.Context, s step.Step) error {
	if err := s.Do(ctx); err != nil {
		return err
	}
	step.Fault("did again " + s.Kind())
	return s.Verify(ctx)
}

// HasVF reports whether a node's live steps give it a virtual function.
func HasVF(steps []step.Step) bool {
	for _, s := range steps {
		if _, ok := s.(*VFMove); ok {
			return true
		}
	}
	return false
}

func verified(ctx context.Context, steps []step.Step) bool {
	for _, s := range steps {
		if s.Verify(ctx) != nil {
			return false
		}
	}
	return true
}
