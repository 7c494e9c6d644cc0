package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"berth/internal/cgroup"
	"berth/internal/device"
	"berth/internal/link"
	"berth/internal/plan"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

// KeyValue is one change of berth set.
type KeyValue struct {
	Key, Value string
}

// SetResult is a limit after berth set.
type SetResult struct {
	Key      string `json:"key"`
	Asked    string `json:"asked"`
	ReadBack string `json:"read_back,omitempty"` // empty for a node that does not run
	By       string `json:"honoured_by,omitempty"`
}

func (r SetResult) String() string {
	if r.ReadBack == "" {
		return fmt.Sprintf("%s %s, from the next start", r.Key, r.Asked)
	}
	return fmt.Sprintf("%s %s: %s by %s", r.Key, r.Asked, r.ReadBack, r.By)
}

// Set changes limits of a node, all or none, and keeps them for the next start. A running node is changed live.
func (b *Berth) Set(ctx context.Context, name string, changes []KeyValue) ([]SetResult, error) {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return nil, err
	}
	defer l.release()
	s, err := b.stored(name)
	if err != nil {
		return nil, err
	}
	n, err := changed(s.Now, changes)
	if err != nil {
		return nil, err
	}
	next := &Stored{Applied: s.Applied, Now: n}
	if _, err := b.liveInit(name); err != nil {
		if err := b.checkLimits(s.Now, n); err != nil {
			return nil, err
		}
		var all []SetResult
		for _, c := range changes {
			all = append(all, SetResult{Key: c.Key, Asked: c.Value})
		}
		return all, b.store(name, next)
	}
	done, err := b.setLive(ctx, s.Now, next)
	if err != nil {
		return nil, err
	}
	return b.unchanged(done, changes, n)
}

// changed returns a copy of the node with the changes made.
func changed(n *vnode.Node, changes []KeyValue) (*vnode.Node, error) {
	text, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	var c vnode.Node
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	for _, kv := range changes {
		if err := vnode.Change(&c, kv.Key, kv.Value); err != nil {
			return nil, refuse.Invalidf("%w", err)
		}
	}
	if problems := vnode.Validate(&c); len(problems) > 0 {
		return nil, refuse.Invalidf("%s", problems[0])
	}
	return &c, nil
}

// setLive leads a running node from its old spec to the new one. The change counts once the new spec is stored: killed
// before, repair gives the old values back; killed after, the new ones stay.
func (b *Berth) setLive(ctx context.Context, old *vnode.Node, next *Stored) ([]SetResult, error) {
	name := next.Now.Name
	if _, err := b.replugged(ctx, name); err != nil { // what came or went meanwhile
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
	j, err := b.liveJournal(name)
	if err != nil {
		return nil, err
	}
	if err := j.BeginSet(specID(next)); err != nil {
		return nil, err
	}
	var all []SetResult
	for _, s := range steps {
		if err := j.Do(ctx, s); err != nil {
			return nil, b.takeBack(ctx, j, fmt.Errorf("%s: %w", s, err))
		}
		all = append(all, resultsOf(s)...)
	}
	if err := b.store(name, next); err != nil {
		return nil, b.takeBack(ctx, j, err)
	}
	step.Fault("set stored")
	return all, j.EndSet()
}

func (b *Berth) takeBack(ctx context.Context, j *step.Journal, err error) error {
	if back := j.UndoSet(context.WithoutCancel(ctx)); back != nil {
		return fmt.Errorf("%w; taking it back failed too: %w", err, back)
	}
	return fmt.Errorf("%w; the old values are in force", err)
}

// settleSet ends a live change whose process was killed: at the new values if the new spec was stored, else at the old.
func (b *Berth) settleSet(ctx context.Context, name string, j *step.Journal) (string, error) {
	s, err := b.stored(name)
	if err != nil {
		return "", err
	}
	if specID(s) == j.Set.Spec {
		return "set was interrupted: the new values are in force", j.EndSet()
	}
	return "set was interrupted: the old values are in force", j.UndoSet(ctx)
}

// specID identifies a stored spec.
func specID(s *Stored) string {
	text, _ := json.Marshal(s) // of plain data: cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// liveChanges returns the steps from one spec to another that a running node can take.
func (b *Berth) liveChanges(facts plan.Facts, old, new *vnode.Node) ([]step.Step, error) {
	path := plan.GroupPath(b.Layout, new)
	known, err := b.table(new.Name)
	if err != nil {
		return nil, err
	}
	was, oldDisks, err := b.present(old, facts.Host.Cgroups, known)
	if err != nil {
		return nil, err
	}
	before, err := cgroup.Held(was, facts.Host.Cgroups, path, oldDisks)
	if err != nil {
		return nil, err
	}
	if err := cgroup.CheckHugePages(new.HugePages, old.HugePages, facts.Host.Cgroups); err != nil {
		return nil, err
	}
	if err := cgroup.CheckMemory(new.Memory, old.Memory, facts.Host.Cgroups, path); err != nil {
		return nil, err
	}
	after, err := cgroup.Limits(plugged(new, known), facts.Host.Cgroups, path, facts.Disks)
	if err != nil {
		return nil, err
	}
	// What the old spec asks for was possible when it was asked for, and is only taken away.
	oldRates, err := plan.Rates(old, plan.Facts{Layout: facts.Layout})
	if err != nil {
		return nil, err
	}
	rates, err := plan.Rates(new, facts)
	if err != nil {
		return nil, err
	}
	rlimits, err := cgroup.RLimitChanges(old, new, facts.Host, path)
	if err != nil {
		return nil, err
	}
	changes := slices.Concat(cgroup.Changes(before, after), link.RateChanges(oldRates, rates), rlimits)
	if slices.Equal(old.Devices, new.Devices) {
		return changes, nil
	}
	devices, err := b.deviceChanges(new, facts.Host.Cgroups, known, device.Table{Devices: facts.Devices, Disks: known.Disks})
	return append(changes, devices...), err
}
