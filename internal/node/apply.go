package node

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"berth/internal/image"
	"berth/internal/node/events"
	"berth/internal/node/history"
	"berth/internal/node/plan"
	"berth/internal/node/records"
	"berth/internal/spec/template"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Outcome says what apply did to one node.
type Outcome struct {
	Node    string             `json:"node"`
	Did     string             `json:"did"` // created | started | changed | restarted | connected again: eth0 | unchanged
	Changes []vnode.Difference `json:"changes,omitempty"`

	Restored []vnode.Difference `json:"restored,omitempty"` // values that another program had changed, and that were restored

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
	if _, damaged := errors.AsType[*refuse.Error](err); damaged && b.guard == nil {
		return &Outcome{Node: n.Name, Did: "started"}, b.applyAnew(ctx, l, n, err)
	}
	if err := b.allowed(s, err); err != nil {
		return nil, err
	}
	init, initErr := b.LiveInit(n.Name)
	o := &Outcome{Node: n.Name, Did: "unchanged", Changes: plan.Differences(s.Now, n, init)}
	next := b.next(s, n)
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
	case plan.AllLive(o.Changes):
		o.Did = "changed"
		_, err := b.setLive(ctx, s.Now, next)
		if err == nil {
			o.Restored, err = b.restore(ctx, n, nil)
		}
		return o, err
	case !restart:
		return nil, refuse.Busyf("node %s runs, and a change of %s needs a restart: berth apply --restart; nothing was changed",
			n.Name, strings.Join(plan.NeedRestart(o.Changes), ", "))
	}
	o.Did = "restarted"
	if err := b.restart(ctx, l, s.Now, next, OwnGrace); err != nil {
		return nil, err
	}
	return o, nil
}

// next is what is stored of a node once a new spec is applied to it.
func (b *Berth) next(s *records.Stored, n *vnode.Node) *records.Stored {
	next := &records.Stored{Applied: n, Now: n, Rights: b.rights, Covers: s.Covers}
	if b.rights == nil { // an admin's free spec: the node's files were written under the rights that are stored
		next.Rights = s.Rights
	}
	return next
}

// check asks the planner for a refusal of a start before anything is changed.
func (b *Berth) check(ctx context.Context, old *vnode.Node, next *records.Stored) error {
	facts, err := b.facts(ctx, next.Now)
	if err != nil {
		return err
	}
	wanted, _, err := plan.All(next.Now, facts)
	if err == nil {
		_, err = b.keeps(old, next, facts, wanted)
	}
	return err
}

// keeps refuses a start that would put another root or other volumes under what the node wrote. It returns the node's claims.
func (b *Berth) keeps(old *vnode.Node, next *records.Stored, facts plan.Facts, wanted []step.Step) (claims *step.Journal, err error) {
	claims, err = b.Claims(next.Now.Name)
	if err == nil {
		err = b.keepsImage(old, next, facts.Image)
	}
	if err == nil {
		err = plan.KeepsVolumes(claims.Steps(), wanted, old, next.Now)
	}
	return claims, err
}

// renew starts a stopped node with a spec that may differ from the one it had.
func (b *Berth) renew(ctx context.Context, l *lock, old *vnode.Node, next *records.Stored) error {
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
	claims, err := b.keeps(old, next, facts, wanted)
	if err != nil {
		return err
	}
	newRoot := !records.SameRoot(old, n)
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
	history.Tell(b.Events(), claims, live, false)
	return b.keeper().Watch(ctx, n.Name)
}

// Start starts a stopped node; changed is false if it ran already.
func (b *Berth) Start(ctx context.Context, name string) (changed bool, err error) {
	return b.startBy(ctx, name, func(l *lock) error {
		s, err := b.Stored(name)
		if err != nil {
			return err
		}
		return b.renew(ctx, l, s.Now, s)
	})
}

// Autostart is Start for a node that starts with the host.
func (b *Berth) Autostart(ctx context.Context, name string) (changed bool, err error) {
	return b.startBy(ctx, name, func(l *lock) error { return b.renewByPolicy(ctx, l, name) })
}

// renewByPolicy starts a stopped node because its spec says so: its restart policy or autostart. One that must not start over another image
// stays stopped until a user decides, and an event says so.
func (b *Berth) renewByPolicy(ctx context.Context, l *lock, name string) error {
	s, err := b.Stored(name)
	if err != nil {
		return err
	}
	own := *b
	own.byPolicy = true
	err = own.renew(ctx, l, s.Now, s)
	if template.Refused(err) {
		_ = b.Events().Append([]events.Event{{Time: time.Now(), Node: name, Event: events.Refused, Text: err.Error()}}, false)
		err = errors.Join(err, b.stopped(name, false))
	}
	return err
}

func (b *Berth) startBy(ctx context.Context, name string, renew func(*lock) error) (changed bool, err error) {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return false, err
	}
	defer l.release()
	if _, err := b.LiveInit(name); err == nil {
		if j, err := b.Live(name); err == nil && history.IsPaused(j) {
			return false, refuse.Busyf("node %s is paused; berth unpause %s lets it go on", name, name)
		}
		return false, b.keeper().Watch(ctx, name)
	}
	return true, renew(l)
}

// Restart stops a node, if it runs, and starts it again with its claims and with the files that it wrote. If the planner
// would refuse the start, Restart refuses before the node is stopped. wasUp is false if the node did not run.
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

// restart stops a node and starts it with a spec that may differ from the one it had. A command that is killed in
// between leaves the node stopped, and repair says so.
func (b *Berth) restart(ctx context.Context, l *lock, old *vnode.Node, next *records.Stored, grace time.Duration) error {
	name := next.Now.Name
	if err := b.check(ctx, old, next); err != nil {
		return err
	}
	note := func(under bool) error {
		claims, err := b.Claims(name)
		if err != nil {
			return err
		}
		return history.SetRestarting(claims, under)
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

// reconcile gives up the claims that go and makes those that are missing.
func reconcile(ctx context.Context, j *step.Journal, wanted []step.Step, newRoot bool) error {
	if err := j.Undo(ctx, plan.Goes(wanted, newRoot)); err != nil {
		return err
	}
	claimed := false
	for _, w := range wanted {
		if slices.ContainsFunc(j.Steps(), plan.Same(w)) {
			continue
		}
		if err := claim(ctx, j, w); err != nil {
			return err
		}
		claimed = true
	}
	if claimed {
		return j.Sync() // before its command can write there
	}
	return nil
}

// applyAnew gives a node that does not run a new spec in the place of one that cannot be read, and starts it. Files that the node
// wrote stay: a spec by which some of them would be lost is refused. The caller holds the node's lock.
func (b *Berth) applyAnew(ctx context.Context, l *lock, n *vnode.Node, damaged error) error {
	if _, err := b.LiveInit(n.Name); err == nil {
		return refuse.Busyf("node %s runs, and its spec cannot be read; berth stop %s, then apply again: %w", n.Name, n.Name, damaged)
	}
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
	for _, c := range claims.Steps() {
		room, _, _ := strings.Cut(c.Kind(), ".")
		if _, cache := c.(*image.Unpack); !cache && slices.Contains([]string{"ids", "image", "scratch"}, room) && !slices.ContainsFunc(wanted, plan.Same(c)) {
			return refuse.Busyf("node %s has %s, and would lose it by this spec; put it into the spec, or remove the node (berth rm %s)", n.Name, c, n.Name)
		}
	}
	if was, err := b.Noted(n.Name); err == nil && was.Image != "" && was.Image != n.Image.String() {
		return refuse.Busyf("node %s was made of image %s, and what it wrote covers that; name it in the spec, or remove the node (berth rm %s)", n.Name, was.Image, n.Name)
	}
	next := &records.Stored{Applied: n, Now: n}
	if err := b.Store(n.Name, next); err != nil {
		return err
	}
	return b.renew(ctx, l, n, next)
}
