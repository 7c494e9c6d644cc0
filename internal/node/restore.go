package node

import (
	"context"
	"fmt"
	"strings"

	"berth/internal/host/group"
	"berth/internal/limit/rlimit"
	"berth/internal/node/inspect"
	"berth/internal/node/plan"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proc"
	"berth/internal/sys/proof"
	"berth/internal/sys/step"
)

// drift looks for changes of another program to a running node: values of its limits, or processes out of its group. It
// changes nothing. The steps are those of the journal that it returns.
func (b *Berth) drift(ctx context.Context, n *vnode.Node, all proc.Containers) (*step.Journal, inspect.Drift, error) {
	j, err := b.Live(n.Name)
	if err != nil {
		return nil, inspect.Drift{}, err
	}
	d, err := inspect.DriftOf(ctx, b.Layout, b.Host, n, j.Steps(), all)
	return j, d, err
}

// held reads the devices and the limits of a node, as the kernel has them. pid is that of its process 1 if it runs.
func (b *Berth) held(ctx context.Context, n *vnode.Node, pid int, running bool) (inspect.Held, error) {
	if !running {
		return inspect.ReadHeld(ctx, b.Layout, b.Host, n, nil)
	}
	j, err := b.Live(n.Name)
	if err != nil {
		return inspect.Held{}, err
	}
	at := inspect.Running{PID: pid, Live: j.Steps()}
	if dev, err := b.Dev(n.Name); err == nil && !n.IsMachine() { // the guest has a /dev of its own
		at.Dev = &dev
	}
	return inspect.ReadHeld(ctx, b.Layout, b.Host, n, &at)
}

// takes are values of which each key of a limit takes one.
func takes() []string { return []string{"1", "0", "1GiB", "1MB/s", "1Gbit/s"} }

// cleared adds to a drift the steps that take off a limit of which berth set says max: the spec has none, but another program
// may have set one.
func (b *Berth) cleared(d *inspect.Drift, n *vnode.Node, key string) error {
	for _, value := range takes() {
		with, err := plan.Changed(n, []KeyValue{{Key: key, Value: value}})
		if err != nil {
			continue
		}
		return d.Clear(b.Layout, b.Host, with, plan.GroupPath(b.Layout, n), key)
	}
	return nil
}

// restore undoes changes of another program to a running node: all of them, or those of the limits that these keys of berth
// set name, and of its processes. It returns what it restored. It is not journalled: if it is killed, the next command that
// looks finds the rest again.
func (b *Berth) restore(ctx context.Context, n *vnode.Node, keys []KeyValue) ([]vnode.Difference, error) {
	j, d, err := b.drift(ctx, n, proc.ReadContainers())
	if err == nil && keys != nil {
		err = b.onlyOf(ctx, &d, n, keys)
	}
	if err != nil {
		return nil, err
	}
	for _, s := range d.Steps {
		if r, ok := s.(*group.Return); ok && len(r.Gone) > 0 {
			if err := r.Remake(); err != nil {
				return nil, err
			}
			if err := j.Redo(ctx, r.Group); err != nil {
				return nil, err
			}
		}
		if p, ok := s.(step.Preparer); ok {
			if err := p.Prepare(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", s, err)
			}
		}
		if err := step.Do(ctx, s); err != nil {
			return nil, err
		}
	}
	return d.What, nil
}

// onlyOf reduces a drift to the limits that these changes of berth set name, and adds limits that are to be none and are there
// all the same.
func (b *Berth) onlyOf(ctx context.Context, d *inspect.Drift, n *vnode.Node, changes []KeyValue) error {
	d.Only(keysOf(changes))
	for _, c := range changes {
		var err error
		if name, ok := strings.CutPrefix(c.Key, "rlimits."); ok && c.Value != vnode.Max {
			err = b.relimited(d, n, name)
		} else if c.Value == vnode.Max {
			err = b.cleared(d, n, c.Key)
		} else if c.Key == string(proof.MachineMemory) {
			err = d.Regive(ctx, n, b.LiveInit)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// relimited adds to a drift the step that gives all processes of a node a resource limit, where its process 1 has another one:
// the node may have changed that itself, so the step is done only for a user who names the limit.
func (b *Berth) relimited(d *inspect.Drift, n *vnode.Node, name string) error {
	init, err := b.LiveInit(n.Name)
	if err != nil {
		return err
	}
	f, err := hostFacts(n)
	if err != nil {
		return err
	}
	steps, err := rlimit.Drifted(n, name, f, plan.GroupPath(b.Layout, n), init.First().PID)
	for _, c := range steps {
		d.Add(c.Key, c.From, c.Asked, c)
	}
	return err
}

// restored is restore for berth repair: it says what was restored.
func (b *Berth) restored(ctx context.Context, name string) (did string, err error) {
	if _, err := b.LiveInit(name); err != nil {
		return "", nil //nolint:nilerr // it does not run
	}
	s, err := b.Stored(name)
	if err != nil {
		return "", err
	}
	back, err := b.restore(ctx, s.Now, nil)
	var said []string
	for _, d := range back {
		said = append(said, fmt.Sprintf("%s %s (was %s)", d.Key, d.New, d.Old))
	}
	if len(said) > 0 {
		did = "given back what another program had changed: " + strings.Join(said, ", ")
	}
	return did, err
}

// Look notes changes of another program to the running nodes of a list. It changes nothing, and leaves out a node that cannot
// be read.
func (b *Berth) Look(ctx context.Context, all []Status) {
	processes := proc.ReadContainers()
	for i, s := range all {
		if !s.Runs() {
			continue
		}
		stored, err := b.Stored(s.Name)
		if err != nil {
			continue
		}
		_, d, err := b.drift(ctx, stored.Now, processes)
		if err != nil {
			continue
		}
		all[i].Lost = d.Lost()
	}
}
