package link

import (
	"context"
	"fmt"

	"berth/internal/dhcp"
	"berth/internal/step"
)

// Reattach gives a running node those of its virtual functions back that it has lost, as when a driver was reloaded:
// their links are then on the host, or new. steps are the node's live ones, rates those that it has now. What is as it
// should be is left; else the interface is set up again, with addresses, routes and rates. It returns the interfaces
// that it mended.
func Reattach(ctx context.Context, steps []step.Step, rates []*Rate) ([]string, error) {
	var mended []string
	for _, s := range steps {
		m, ok := s.(*VFMove)
		if !ok || !m.mine() {
			continue
		}
		before, after := around(m, steps)
		if verified(ctx, append(before, after...)) {
			continue
		}
		for _, r := range rates {
			if r.If == m.If {
				before = append(before, r)
			}
		}
		for _, s := range append(before, after...) {
			if err := again(ctx, s); err != nil {
				return mended, fmt.Errorf("give %s its virtual function back: %w", m.Owner, err)
			}
		}
		mended = append(mended, m.If)
	}
	return mended, nil
}

// around returns the steps that set the interface of m up: until it is in the node, and from then on.
func around(m *VFMove, steps []step.Step) (before, after []step.Step) {
	for _, s := range steps {
		switch c := s.(type) {
		case *VFConfigure:
			if c.Lease == m.Lease {
				before = append(before, c)
			}
		case *Configure:
			if c.If == m.If {
				after = append(after, c)
			}
		case *DHCP:
			if l := c.Lease(); c.If == m.If && l.State(dhcp.Now()) != dhcp.Ended { // else the keeper asks for one anyway
				after = append(after, c)
			}
		}
	}
	return append(before, m), after
}

func again(ctx context.Context, s step.Step) error {
	if err := s.Do(ctx); err != nil {
		return err
	}
	step.Fault("did again " + s.Kind())
	return s.Verify(ctx)
}

// HasVF reports whether one of a node's live steps gives it a virtual function.
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
