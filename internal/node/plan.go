package node

import (
	"context"
	"slices"

	"berth/internal/node/inspect"
	"berth/internal/node/plan"
	"berth/internal/node/records"
	"berth/internal/spec/vnode"
	"berth/internal/sys/inherit"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Proposal lists the acts of apply, or of set, on one node before they are done.
type Proposal struct {
	Command     string             `json:"-"` // apply | set
	Node        string             `json:"node"`
	Does        string             `json:"does"` // create | start | change | restart | keep: for the next start | nothing
	Differences []vnode.Difference `json:"differences,omitempty"`
	Drift       []vnode.Difference `json:"drift,omitempty"`   // changed live since it was applied
	Gone        []string           `json:"gone,omitempty"`    // devices that were unplugged under the node
	Lost        []vnode.Difference `json:"lost,omitempty"`    // values that another program has changed: they would be written again
	Removes     []string           `json:"removes,omitempty"` // volumes and deltas that would be removed first, with what the node wrote there
	Steps       []step.Line        `json:"steps,omitempty"`
}

// loses adds the values that another program has taken from a running node, and the steps that restore them.
func (p *Proposal) loses(d inspect.Drift) {
	if len(d.Steps) > 0 {
		p.Does, p.Lost, p.Steps = "change", d.What, append(p.Steps, step.Lines(d.Steps)...)
	}
}

// Changes reports whether something would change.
func (p *Proposal) Changes() bool { return p.Does != "nothing" }

// Summary is the proposal in one line.
func (p *Proposal) Summary() string {
	switch p.Does {
	case "create":
		return "would be created and started"
	case "start":
		return "would be started"
	case "change":
		return "would be changed live"
	case "restart":
		return "needs a restart (berth apply --restart)"
	case "keep":
		return "would be changed from the next start"
	}
	return "unchanged"
}

// Plan returns the proposal of apply. It changes nothing.
func (b *Berth) Plan(ctx context.Context, n *vnode.Node) (*Proposal, error) {
	known, err := inspect.Table(b.Layout, b.Host.Sys, n.Name)
	if err != nil {
		return nil, err
	}
	facts, err := b.factsKnowing(ctx, n, known)
	if err != nil {
		return nil, err
	}
	claims, live, err := plan.All(n, facts)
	if err != nil {
		return nil, err
	}
	p := &Proposal{Command: "apply", Node: n.Name, Gone: inspect.Gone(known)}
	s, err := b.Stored(n.Name)
	if refuse.KindOf(err) == refuse.NotFound {
		p.Does, p.Steps = "create", step.Lines(slices.Concat(claims, live))
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if j, err := b.Claims(n.Name); err == nil { // else apply says so
		p.Removes = plan.Removes(j.Steps(), claims, !records.SameRoot(s.Now, n))
	}
	if live, err = b.liveAsHeld(n, facts, slices.Clone(claims)); err != nil {
		return nil, err
	}
	init, initErr := b.LiveInit(n.Name)
	p.Drift, p.Differences = vnode.Diff(s.Applied, s.Now), plan.Differences(s.Now, n, init)
	switch starts, next := initErr != nil || !plan.AllLive(p.Differences), b.next(s, n); {
	case starts && len(known.Devices)+len(known.Disks) > 0: // with those that are there then
		err = b.check(ctx, s.Now, next)
	case starts: // the facts are the same
		if err = inherit.Free(); err == nil {
			_, err = b.keeps(s.Now, next, facts, claims)
		}
	}
	if err != nil {
		return nil, err
	}
	switch {
	case initErr != nil:
		p.Does, p.Steps = "start", step.Lines(live)
	case len(p.Differences) == 0:
		p.Does = "nothing"
	case plan.AllLive(p.Differences):
		p.Does = "change"
		changes, err := b.liveChanges(facts, s.Now, n)
		if err != nil {
			return nil, err
		}
		p.Steps = step.Lines(changes)
	default:
		p.Does, p.Steps = "restart", step.Lines(live)
		return p, nil
	}
	if initErr == nil {
		_, drift, err := b.drift(ctx, s.Now, proc.ReadContainers())
		if err != nil {
			return nil, err
		}
		drift.Except(vnode.Diff(s.Now, n))
		p.loses(drift)
	}
	return p, nil
}

// PlanSet returns the proposal of Set; without changes, how a running node would follow devices that came or went. It
// changes nothing, and refuses the same as Set.
func (b *Berth) PlanSet(ctx context.Context, name string, changes []KeyValue) (*Proposal, error) {
	s, err := b.Stored(name)
	if err != nil {
		return nil, err
	}
	n, err := plan.Changed(s.Now, changes)
	if err != nil {
		return nil, err
	}
	known, err := inspect.Table(b.Layout, b.Host.Sys, name)
	if err != nil {
		return nil, err
	}
	init, initErr := b.LiveInit(name)
	p := &Proposal{Command: "set", Node: name, Does: "nothing", Differences: plan.Differences(s.Now, n, init), Gone: inspect.Gone(known)}
	if initErr != nil {
		if len(changes) == 0 {
			return p, nil
		}
		if len(p.Differences) > 0 {
			p.Does = "keep"
		}
		return p, b.checkLimits(s.Now, n)
	}
	replug, err := b.planReplug(name)
	if err != nil {
		return nil, err
	}
	if replug != nil {
		p.Does, p.Steps = "change", step.Lines(replug.All())
		if err := replug.Refused; err != nil {
			return nil, err
		}
	}
	_, drift, err := b.drift(ctx, n, proc.ReadContainers())
	if err != nil {
		return nil, err
	}
	if len(changes) == 0 {
		p.loses(drift)
		return p, nil
	}
	if err := b.onlyOf(ctx, &drift, n, changes); err != nil {
		return nil, err
	}
	drift.Except(p.Differences)
	facts, err := b.limitFacts(s.Now, n)
	if err != nil {
		return nil, err
	}
	steps, err := b.liveChanges(facts, s.Now, n)
	if len(steps) > 0 || len(p.Differences) > 0 {
		p.Does, p.Steps = "change", append(p.Steps, step.Lines(steps)...)
	}
	p.loses(drift)
	return p, err
}

// liveAsHeld plans the live steps of a node that is there: with the ids, MACs and addresses that it holds.
func (b *Berth) liveAsHeld(n *vnode.Node, facts plan.Facts, claims []step.Step) ([]step.Step, error) {
	if j, err := b.Claims(n.Name); err == nil {
		for i, c := range claims {
			if at := slices.IndexFunc(j.Steps(), plan.Same(c)); at >= 0 {
				claims[i] = j.Steps()[at]
			}
		}
	}
	return plan.Live(n, facts, claims)
}
