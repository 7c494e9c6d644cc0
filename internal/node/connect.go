package node

import (
	"context"

	"berth/internal/link"
	"berth/internal/plan"
	"berth/internal/vnode"
)

// hub is where the bridge between nodes is.
func (b *Berth) hub() link.Hub { return link.Hub(b.Layout.Hub()) }

// maySpoof names the interfaces of a spec that are not held to their own addresses.
func maySpoof(n *vnode.Node) []string {
	var names []string
	for _, nw := range n.Network {
		if nw.Spoof {
			names = append(names, nw.Name)
		}
	}
	return names
}

// findTrouble notes what is wrong with the connections of the nodes that run.
func (b *Berth) findTrouble(all []Status) error {
	sight := link.Look(b.hub())
	for i := range all {
		if err := all[i].findTrouble(sight); err != nil {
			return err
		}
	}
	return nil
}

func (s *Status) findTrouble(sight *link.Sight) error {
	s.Trouble = nil
	if s.State != Running {
		return nil
	}
	for _, w := range s.Wires {
		text, err := sight.Trouble(w, s.PID)
		if err != nil {
			return err
		}
		if text != "" {
			s.Trouble = append(s.Trouble, text)
		}
	}
	return nil
}

// Troubled returns the nodes that run and have lost a connection.
func (b *Berth) Troubled(ctx context.Context) ([]Status, error) {
	all, err := b.List(ctx)
	if err != nil {
		return nil, err
	}
	var some []Status
	for _, s := range all {
		if len(s.Trouble) > 0 {
			some = append(some, s)
		}
	}
	return some, nil
}

// SpoofDetail is what keeps an interface to its own addresses.
type SpoofDetail struct {
	Refused bool   `json:"refused"`           // false: the spec allows it
	Program string `json:"program,omitempty"` // tag of the kernel's program, while the node runs
	Holds   bool   `json:"holds"`             // it is the program that should be there
}

func (b *Berth) spoofDetail(n *vnode.Node, macs map[string]string, nw vnode.Network, running bool) *SpoofDetail {
	d := &SpoofDetail{Refused: !nw.Spoof}
	if running && d.Refused {
		d.Program, d.Holds, _ = link.SpoofCheck(plan.LinkInput(n, plan.Facts{Layout: b.Layout}, macs), nw.Name) // without an answer it does not hold
	}
	return d
}
