package membership

import (
	"context"
	"net/netip"
	"strings"

	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Kinds returns the constructors of this package's steps.
func Kinds() step.Kinds {
	return step.Kinds{"site.claim": func() step.Step { return &Claim{} }}
}

// Claim reserves a node's name, given MACs and addresses in the site until the node is removed. It is a node's first step: a
// thing that another node of the site has is refused before anything changes. MACs that the host chooses are claimed where it
// chooses them (address.ClaimMAC).
type Claim struct {
	Agent  Agent   `json:"agent"`
	Node   string  `json:"node"`
	Things []Thing `json:"things"`
}

// Kind implements step.Step.
func (c *Claim) Kind() string { return "site.claim" }

func (c *Claim) String() string {
	var all []string
	for _, t := range c.Things {
		all = append(all, t.String())
	}
	return strings.Join(all, ", ") + ", for node " + c.Node + " of host " + c.Agent.Host
}

// Do claims; it is done again without harm.
func (c *Claim) Do(ctx context.Context) error { return c.Agent.Claim(ctx, c.Node, c.Things...) }

// Verify does nothing: the agent answers once the claim is committed, and a second question could only fail later.
func (c *Claim) Verify(context.Context) error { return nil }

// OnDisk implements step.Lasting: the site keeps the claims.
func (c *Claim) OnDisk() error { return nil }

// Undo gives the claims up.
func (c *Claim) Undo(ctx context.Context) error { return c.Agent.Release(ctx, c.Node, c.Things...) }

// Claims returns the step that claims what a node's spec names; nil if the host is alone. The addresses on networks that end
// at the host (mode nat, and the host's own bridge) need no claim in the site.
func Claims(a *Agent, n *vnode.Node) ([]step.Step, error) {
	if a == nil {
		return nil, nil
	}
	things, err := Things(n)
	if err != nil {
		return nil, err
	}
	return []step.Step{&Claim{Agent: *a, Node: n.Name, Things: things}}, nil
}

// Things returns what a node's spec names and only one node of a site may have.
func Things(n *vnode.Node) ([]Thing, error) {
	all := []Thing{{Kind: Name, Value: n.Name}}
	for _, w := range n.Network {
		from, err := w.MACFrom()
		if err != nil {
			return nil, refuse.Invalidf("MAC of network %s: %w", w.Name, err)
		}
		if from.Given != (mac.Address{}) {
			all = append(all, Thing{Kind: MAC, Value: from.Given.String()})
		}
		if w.Mode == vnode.NAT || w.Mode == vnode.Bridge && w.Parent == "" {
			continue
		}
		for _, cidr := range w.Address {
			p, err := netip.ParsePrefix(cidr)
			if err != nil {
				return nil, refuse.Invalidf("address of network %s: %w", w.Name, err)
			}
			all = append(all, Thing{Kind: Address, Value: p.Addr().String()})
		}
	}
	return all, nil
}
