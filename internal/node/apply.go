package node

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"berth/internal/detail"
	"berth/internal/fate"
	"berth/internal/image"
	"berth/internal/plan"
	"berth/internal/proc"
	"berth/internal/refuse"
	"berth/internal/roster"
	"berth/internal/step"
	"berth/internal/vnode"
)

// Outcome says what apply did to one node.
type Outcome struct {
	Node    string             `json:"node"`
	Did     string             `json:"did"` // created | started | changed | restarted | connected again: eth0 | unchanged
	Changes []vnode.Difference `json:"changes,omitempty"`

	Restored []vnode.Difference `json:"restored,omitempty"` // what another program had changed

	Addresses []string `json:"addresses,omitempty"` // that a node of a template has by its spec and its leases
	Held      int64    `json:"held_ms,omitempty"`   // milliseconds that its command was ready, and was held as asked
}

// Apply makes the node as its spec says. A change that a running node cannot take live needs restart.
func (b *Berth) Apply(ctx context.Context, n *vnode.Node, restart bool) (*Outcome, error) {
	l, err := b.lock(ctx, n.Name)
	if err != nil {
		return nil, err
	}
	defer l.release()
	return b.apply(ctx, l, n, restart)
}

func (b *Berth) apply(ctx context.Context, l *lock, n *vnode.Node, restart bool) (*Outcome, error) {
	if err := b.settle(ctx, n.Name); err != nil {
		return nil, err
	}
	s, err := b.Stored(n.Name)
	if refuse.KindOf(err) == refuse.NotFound {
		if _, err := b.create(ctx, l, n, starter{start: b.launcher(n.Name)}); err != nil {
			return nil, err
		}
		return &Outcome{Node: n.Name, Did: "created"}, b.keeper().Watch(ctx, n.Name)
	}
	if err := b.allowed(s, err); err != nil {
		return nil, err
	}
	o := &Outcome{Node: n.Name, Did: "unchanged", Changes: vnode.Diff(s.Now, n)}
	next := &roster.Stored{Applied: n, Now: n, Rights: b.rights, Covers: s.Covers}
	if b.rights == nil { // an admin's free spec: what is kept is still of who wrote it
		next.Rights = s.Rights
	}
	_, initErr := b.LiveInit(n.Name)
	running := initErr == nil
	switch {
	case running && len(o.Changes) == 0:
		if err := b.Store(n.Name, next); err != nil {
			return nil, err
		}
		did, err := b.reattach(ctx, n.Name)
		if err != nil {
			return nil, err
		}
		if o.Restored, err = b.restore(ctx, n, nil); err != nil {
			return nil, err
		}
		if len(o.Restored) > 0 {
			o.Did = "changed"
		}
		o.Did = cmp.Or(did, o.Did)
		return o, b.keeper().Watch(ctx, n.Name)
	case !running:
		o.Did = "started"
		return o, b.renew(ctx, l, s.Now, next)
	case allLive(o.Changes):
		o.Did = "changed"
		_, err := b.setLive(ctx, s.Now, next)
		if err == nil {
			o.Restored, err = b.restore(ctx, n, nil)
		}
		return o, err
	case !restart:
		return nil, refuse.Busyf("node %s runs, and a change of %s needs a restart: berth apply --restart; nothing was changed",
			n.Name, strings.Join(needRestart(o.Changes), ", "))
	}
	o.Did = "restarted"
	if err := b.restart(ctx, l, s.Now, next, OwnGrace); err != nil {
		return nil, err
	}
	return o, nil
}

// check lets the planner refuse what it would refuse, before anything is changed.
func (b *Berth) check(ctx context.Context, old *vnode.Node, next *roster.Stored) error {
	n := next.Now
	facts, err := b.facts(ctx, n)
	if err != nil {
		return err
	}
	wanted, _, err := plan.All(n, facts)
	if err != nil {
		return err
	}
	claims, err := b.Claims(n.Name)
	if err != nil {
		return err
	}
	if err := b.keepsImage(old, next, facts.Image); err != nil {
		return err
	}
	return keepsVolumes(claims.Steps(), wanted, old, n)
}

// renew starts a stopped node with a spec that may differ from the one it had.
func (b *Berth) renew(ctx context.Context, l *lock, old *vnode.Node, next *roster.Stored) error {
	n := next.Now
	// Its init may have ended since the node was settled: what that left is undone first.
	if _, _, err := b.settleLive(ctx, n.Name); err != nil {
		return err
	}
	release, err := image.Open(b.Layout).Use(ctx, n.Image)
	if err != nil {
		return err
	}
	defer release() // as in create
	facts, err := b.facts(ctx, n)
	if err != nil {
		return err
	}
	wanted, _, err := plan.All(n, facts)
	if err != nil {
		return err
	}
	claims, err := b.Claims(n.Name)
	if err != nil {
		return err
	}
	if err := b.keepsImage(old, next, facts.Image); err != nil {
		return err
	}
	if err := keepsVolumes(claims.Steps(), wanted, old, n); err != nil {
		return err
	}
	newRoot := !roster.SameRoot(old, n)
	if err := reconcile(ctx, claims, wanted, newRoot); err != nil {
		return err
	}
	if newRoot || next.Covers == "" {
		next.Covers = facts.Image.Content()
	}
	if err := b.Store(n.Name, next); err != nil {
		return err
	}
	live, err := b.start(ctx, l, n, facts, claims, starter{start: b.launcher(n.Name)})
	if err != nil {
		return err
	}
	fate.Tell(b.Events(), claims, live, false)
	return b.keeper().Watch(ctx, n.Name)
}

// Restart stops a node, if it runs, and starts it again with what it has: claims, and what it wrote. What the planner would
// refuse is refused before the node is stopped. wasUp is false if the node did not run.
func (b *Berth) Restart(ctx context.Context, name string, grace time.Duration) (wasUp bool, err error) {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return false, err
	}
	defer l.release()
	s, err := b.Stored(name)
	if err != nil {
		return false, err
	}
	if f, err := b.Fate(name); err == nil && f.Owner != nil {
		return true, refuse.Busyf("node %s belongs to a berth run, which removes it when it ends", name)
	}
	_, notUp := b.LiveInit(name)
	return notUp == nil, b.restart(ctx, l, s.Now, s, grace)
}

// restart stops a node and starts it with a spec that may differ from the one it had. Who is killed in between leaves it
// stopped, and repair says so.
func (b *Berth) restart(ctx context.Context, l *lock, old *vnode.Node, next *roster.Stored, grace time.Duration) error {
	name := next.Now.Name
	if err := b.check(ctx, old, next); err != nil {
		return err
	}
	note := func(under bool) error {
		claims, err := b.Claims(name)
		if err != nil {
			return err
		}
		return fate.SetRestarting(claims, under)
	}
	if err := note(true); err != nil {
		return err
	}
	_, err := b.stop(ctx, name, grace)
	if err == nil {
		err = b.renew(ctx, l, old, next)
	}
	if noted := note(false); err == nil {
		err = noted
	}
	return err
}

// reconcile gives up the claims that are not wanted any more and makes those that are missing. A delta belongs to the
// root that it covers and goes with it.
func reconcile(ctx context.Context, j *step.Journal, wanted []step.Step, newRoot bool) error {
	err := j.Undo(ctx, func(s step.Step) bool {
		return newRoot && strings.HasPrefix(s.Kind(), "image.") || !slices.ContainsFunc(wanted, same(s))
	})
	if err != nil {
		return err
	}
	for _, w := range wanted {
		if slices.ContainsFunc(j.Steps(), same(w)) {
			continue
		}
		if err := claim(ctx, j, w); err != nil {
			return err
		}
	}
	return nil
}

// same matches claims that stand for the same thing: a step may have filled in what it was given (a base, an address).
func same(s step.Step) func(step.Step) bool {
	return func(t step.Step) bool { return s.Kind() == t.Kind() && plan.ClaimKey(s) == plan.ClaimKey(t) }
}

func allLive(all []vnode.Difference) bool { return len(needRestart(all)) == 0 }

func needRestart(all []vnode.Difference) []string {
	var keys []string
	for _, d := range vnode.ByEntry(all) {
		if !d.Live {
			keys = append(keys, d.Key)
		}
	}
	return keys
}

// Proposal is what apply, or set, would do to one node.
type Proposal struct {
	Command     string             `json:"-"` // apply | set
	Node        string             `json:"node"`
	Does        string             `json:"does"` // create | start | change | restart | keep: for the next start | nothing
	Differences []vnode.Difference `json:"differences,omitempty"`
	Drift       []vnode.Difference `json:"drift,omitempty"` // changed live since it was applied
	Gone        []string           `json:"gone,omitempty"`  // what was unplugged under the node
	Lost        []vnode.Difference `json:"lost,omitempty"`  // what another program has changed: it would be written again
	Steps       []step.Line        `json:"steps,omitempty"`
}

// loses adds what another program has taken from a running node, and the steps that give it back.
func (p *Proposal) loses(d detail.Drift) {
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

// Plan tells what apply would do. It changes nothing.
func (b *Berth) Plan(ctx context.Context, n *vnode.Node) (*Proposal, error) {
	known, err := b.table(n.Name)
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
	p := &Proposal{Command: "apply", Node: n.Name, Gone: goneOf(known)}
	s, err := b.Stored(n.Name)
	if refuse.KindOf(err) == refuse.NotFound {
		p.Does, p.Steps = "create", step.Lines(slices.Concat(claims, live))
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if live, err = b.liveAsHeld(n, facts, claims); err != nil {
		return nil, err
	}
	p.Drift, p.Differences = vnode.Diff(s.Applied, s.Now), vnode.Diff(s.Now, n)
	_, initErr := b.LiveInit(n.Name)
	switch {
	case initErr != nil:
		p.Does, p.Steps = "start", step.Lines(live)
	case len(p.Differences) == 0:
		p.Does = "nothing"
	case allLive(p.Differences):
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

// PlanSet tells what Set would do; without changes, how a running node would follow devices that came or went. It changes
// nothing, and refuses what Set refuses.
func (b *Berth) PlanSet(ctx context.Context, name string, changes []KeyValue) (*Proposal, error) {
	s, err := b.Stored(name)
	if err != nil {
		return nil, err
	}
	n, err := changed(s.Now, changes)
	if err != nil {
		return nil, err
	}
	known, err := b.table(name)
	if err != nil {
		return nil, err
	}
	p := &Proposal{Command: "set", Node: name, Does: "nothing", Differences: vnode.Diff(s.Now, n), Gone: goneOf(known)}
	if _, err := b.LiveInit(name); err != nil {
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
	if err := b.onlyOf(&drift, n, changes); err != nil {
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
			if at := slices.IndexFunc(j.Steps(), same(c)); at >= 0 {
				claims[i] = j.Steps()[at]
			}
		}
	}
	return plan.Live(n, facts, claims)
}
