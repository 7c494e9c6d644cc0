package node

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"berth/internal/host/block"
	"berth/internal/limit/cgroup"
	"berth/internal/network/link"
	"berth/internal/network/sriov"
	"berth/internal/node/inspect"
	"berth/internal/node/plan"
	"berth/internal/node/records"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/proc"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// KeyValue is one change of berth set.
type KeyValue = plan.KeyValue

// SetResult is a limit after berth set.
type SetResult struct {
	Key      string `json:"key"`
	Asked    string `json:"asked"`
	ReadBack string `json:"read_back,omitempty"` // empty for a node that does not run
	By       string `json:"honoured_by,omitempty"`
	Note     string `json:"note,omitempty"` // of a limit on a shared file system, which other hosts hold
}

// Set changes limits of a node, all or none, and keeps them for the next start. A running node is changed live.
func (b *Berth) Set(ctx context.Context, name string, changes []KeyValue) ([]SetResult, error) {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return nil, err
	}
	defer l.release()
	s, err := b.Stored(name)
	if err != nil {
		return nil, err
	}
	n, err := plan.Changed(s.Now, changes)
	if err != nil {
		return nil, err
	}
	next := &records.Stored{Applied: s.Applied, Now: n, Rights: s.Rights, Covers: s.Covers}
	if _, err := b.LiveInit(name); err != nil {
		if err := b.checkLimits(s.Now, n); err != nil {
			return nil, err
		}
		var all []SetResult
		for _, c := range changes {
			all = append(all, SetResult{Key: c.Key, Asked: c.Value})
		}
		return all, b.Store(name, next)
	}
	done, err := b.setLive(ctx, s.Now, next)
	if err != nil {
		return nil, err
	}
	if _, err := b.restore(ctx, n, changes); err != nil {
		return nil, err
	}
	return b.unchanged(ctx, done, changes, n)
}

func keysOf(changes []KeyValue) (keys []string) {
	for _, c := range changes {
		keys = append(keys, c.Key)
	}
	return keys
}

// setLive leads a running node from its old spec to the new one. The change counts once the new spec is stored: killed
// before, repair gives the old values back; killed after, the new ones stay.
func (b *Berth) setLive(ctx context.Context, old *vnode.Node, next *records.Stored) ([]SetResult, error) {
	name := next.Now.Name
	if _, err := b.replugged(ctx, name); err != nil { // devices that came or went meanwhile
		return nil, err
	}
	facts, err := b.limitFacts(old, next.Now)
	if err != nil {
		return nil, err
	}
	steps, err := b.liveChanges(facts, old, next.Now)
	if err != nil {
		return nil, err
	}
	j, err := b.Live(name)
	if err != nil {
		return nil, err
	}
	if err := j.BeginSet(specID(next)); err != nil {
		return nil, err
	}
	var all []SetResult
	for i, s := range steps {
		if err := j.Do(ctx, s); err != nil {
			return nil, b.takeBack(ctx, j, old, fmt.Errorf("%s: %w", s, err))
		}
		all = append(all, resultsOf(s)...)
		if i == 0 && plan.Shrinks(old, next.Now) { // the guest has given back what it could: lower limits come next
			if err := plan.CheckMemory(old, next.Now, facts); err != nil {
				return nil, b.takeBack(ctx, j, old, err)
			}
		}
	}
	if err := b.Store(name, next); err != nil {
		return nil, b.takeBack(ctx, j, old, err)
	}
	fault.Point("set stored")
	return all, j.EndSet()
}

// takeBack ends a live change that failed. It says whether the old values are in force: another program may have removed what holds them.
func (b *Berth) takeBack(ctx context.Context, j *step.Journal, old *vnode.Node, err error) error {
	ctx = context.WithoutCancel(ctx)
	if back := j.UndoSet(ctx); back != nil {
		return fmt.Errorf("%w; taking it back failed too: %w", err, back)
	}
	switch _, d, unknown := b.drift(ctx, old, proc.ReadContainers()); {
	case unknown != nil:
		return fmt.Errorf("%w; nothing was changed; whether the old values are in force is not known: %w", err, unknown)
	case len(d.What) > 0:
		return fmt.Errorf("%w; nothing was changed, and of the old values not all are in force: %s; berth repair gives them back, then set again",
			err, strings.Join(d.Lost(), ", "))
	}
	return fmt.Errorf("%w; the old values are in force", err)
}

// liveChanges plans how a running node gets from one spec to another, and refuses to take away something that is in use in it.
func (b *Berth) liveChanges(facts plan.Facts, old, new *vnode.Node) ([]step.Step, error) {
	var r plan.Running
	var err error
	if r.Table, err = inspect.Table(b.Layout, b.Host.Sys, new.Name); err != nil {
		return nil, err
	}
	if _, r.Disks, err = inspect.Present(b.Layout, b.Host.Sys, old, facts.Host.Cgroups, r.Table); err != nil {
		return nil, err
	}
	if !slices.Equal(old.Devices, new.Devices) && !new.IsMachine() {
		if r.Dev, err = b.Dev(new.Name); err != nil {
			return nil, err
		}
	}
	if r.Init, err = b.LiveInit(new.Name); err != nil {
		return nil, err
	}
	if !plan.Shrinks(old, new) { // else once the guest has given back what it holds
		if err := plan.CheckMemory(old, new, facts); err != nil {
			return nil, err
		}
	}
	steps, err := plan.Change(old, new, facts, r)
	if err != nil {
		return nil, err
	}
	for _, s := range steps {
		if used, ok := s.(interface{ Unused() error }); ok {
			if err := used.Unused(); err != nil {
				return nil, err
			}
		}
	}
	return steps, nil
}

// limitFacts reads the facts that a change of limits needs, and no more: a set must not fail for an image or a runtime that
// only a start needs.
func (b *Berth) limitFacts(old, n *vnode.Node) (plan.Facts, error) {
	f := plan.Facts{Layout: b.Layout}
	if err := plan.Supported(n); err != nil {
		return f, err
	}
	if os.Geteuid() != 0 {
		return f, refuse.Cannotf("run berth as root", "only root can change nodes")
	}
	var err error
	if f.Host, err = hostFacts(n); err != nil {
		return f, err
	}
	sameRate := func(x, y vnode.Network) bool { return x.Rate == y.Rate }
	if !slices.EqualFunc(old.Network, n.Network, sameRate) {
		if f.Links, err = link.ReadFacts(n.Network, n.Standing().NetPriority, sriov.Leases(b.Layout.VFLeases())); err != nil {
			return f, err
		}
	}
	known, err := inspect.Table(b.Layout, b.Host.Sys, n.Name)
	if err != nil {
		return f, err
	}
	if _, f.Disks, err = inspect.Present(b.Layout, b.Host.Sys, n, f.Host.Cgroups, known); err != nil {
		return f, err
	}
	if err = plan.CheckWrites(n, f.Host.Cgroups, f.Disks); err != nil {
		return f, err
	}
	if known.Empty() && slices.Equal(old.Devices, n.Devices) { // one that is gone must not be in the way of another change
		return f, nil
	}
	f.Devices, err = known.Grant(b.Host.Proc, b.Host.Sys, n.Devices)
	return f, err
}

// checkLimits refuses limits of a stopped node that this host cannot enforce, before anything is changed.
func (b *Berth) checkLimits(old, n *vnode.Node) error {
	f, err := b.limitFacts(old, n)
	if err != nil {
		return err
	}
	if _, err := cgroup.Limits(n, f.Host.Cgroups, plan.GroupPath(b.Layout, n), f.Disks); err != nil {
		return err
	}
	loans := block.Loans(b.Layout.DiskLoans())
	if _, err := cgroup.Engines(n, f.Host.Cgroups, f.Disks, loans, b.Layout.Node(n.Name).Run); err != nil {
		return err
	}
	_, err = plan.Rates(n, f)
	return err
}

// resultsOf returns the limits that a step of a live change has set.
func resultsOf(s step.Step) []SetResult {
	p, ok := s.(proof.Prover)
	if !ok {
		return nil
	}
	var all []SetResult
	for _, l := range p.Proved() {
		all = append(all, SetResult{Key: l.Key, Asked: l.Asked, ReadBack: l.ReadBack, By: l.By})
	}
	return all
}

// unchanged adds the keys that needed no step: limits that had the value already or were restored, and settings that the kernel
// does not have.
func (b *Berth) unchanged(ctx context.Context, done []SetResult, changes []KeyValue, n *vnode.Node) ([]SetResult, error) {
	var shown []proof.Limit
	for _, c := range changes {
		if slices.ContainsFunc(done, func(r SetResult) bool { return r.Key == c.Key }) {
			continue
		}
		r := SetResult{Key: c.Key, Asked: c.Value}
		switch {
		case c.Key == "restart":
			r.ReadBack, r.By = string(n.Restart), "keeper"
			if n.Restart == "" {
				r.ReadBack = string(vnode.Never)
			}
		case c.Key == "stop.grace":
			r.ReadBack, r.By = vnode.Duration(n.Stop.Wait()).String(), "berth stop"
		case strings.HasPrefix(c.Key, "rlimits.") && c.Value == vnode.Max: // with the next start
		case strings.HasPrefix(c.Key, "devices"):
			continue
		case c.Value == vnode.Max:
			r.ReadBack, r.By = vnode.Max, "no limit"
		default:
			if shown == nil {
				pid := 0
				if init, err := b.LiveInit(n.Name); err == nil {
					pid = init.First().PID
				}
				held, err := b.held(ctx, n, pid, true)
				if err != nil {
					return nil, err
				}
				shown = held.Limits
			}
			if i := slices.IndexFunc(shown, func(s proof.Limit) bool { return s.Key == c.Key }); i >= 0 {
				s := shown[i]
				elsewhere := inspect.FilesystemOf(n, s.Key) != "" // it is stored, and goes to the file servers that there are
				if !s.Holds && !elsewhere {
					return nil, fmt.Errorf("%s %s does not hold: the kernel has %s, by %s; berth show %s says more", s.Key, s.Asked, cmp.Or(s.ReadBack, "nothing"), s.By, n.Name)
				}
				r.ReadBack, r.By = s.ReadBack, s.By
				if elsewhere {
					r.Note = cmp.Or(s.Why, s.Note)
				}
			} else if c.Key == string(proof.MachineMemory) { // of an older berth, which made no balloon
				r.ReadBack, r.By = r.Asked, "boot"
			}
		}
		done = append(done, r)
	}
	return done, nil
}
