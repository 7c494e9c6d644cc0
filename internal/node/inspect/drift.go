package inspect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/limit/cgroup"
	"berth/internal/limit/devgroup"
	"berth/internal/limit/sysctl"
	"berth/internal/limit/weight"
	"berth/internal/network/link"
	"berth/internal/network/shape"
	"berth/internal/node/plan"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Processes is the key of a drift that is none of a limit: processes that are not in the node's group.
const Processes = "processes"

// Controllers is the key of a drift that takes the files of limits away: controllers of cgroup v2 that are switched off above them.
const Controllers = "controllers"

// Delegated is the key of a drift of the group in which a node's init system makes its own groups: the group then has
// another owner.
const Delegated = "cgroup"

// Drift is what a running node has lost of what it was given, because another program has changed the host.
type Drift struct {
	Return *group.Return // brings back the processes that its limits do not hold; nil: they hold all
	Steps  []step.Step   // the steps that restore it, in order
	What   []vnode.Difference
}

// DriftOf looks for what a node has lost; live are its live steps, and all are the host's processes by container. It changes
// nothing.
func DriftOf(ctx context.Context, l layout.Layout, h host.Host, n *vnode.Node, live []step.Step, all proc.Containers) (d Drift, err error) {
	cg, err := host.ReadCgroups(h.Proc)
	if err != nil {
		return d, err
	}
	known, err := Table(l, h.Sys, n.Name)
	if err != nil {
		return d, err
	}
	here, where, err := Present(l, h.Sys, n, cg, known)
	if err != nil {
		return d, err
	}
	path := plan.GroupPath(l, n)
	held, err := cgroup.Held(here, cg, path, where)
	if err != nil {
		return d, err
	}
	rates, err := plan.Rates(n, plan.Facts{Layout: l})
	if err != nil {
		return d, err
	}
	init := runner.FirstProcess(live)
	for _, s := range live {
		if g, ok := s.(*group.Group); ok && init != nil {
			if d.Return, err = g.Return(all.Of(init.First().PID), group.Container(cg, path)); err != nil {
				return d, err
			}
		}
	}
	off, has, err := group.Disabled(cg, path)
	if err != nil {
		return d, err
	}
	if off != nil { // before the limits, whose files come back with their controllers
		d.Add(Controllers, has, strings.Join(off.Controllers, " "), off)
	}
	if d.Return != nil {
		d.Add(Processes, strings.Join(d.Return.Whom(), ", "), d.Return.To, d.Return)
	}
	for _, s := range live {
		switch s := s.(type) {
		case *group.Delegate: // a group that is made anew is not the node's root's
			if d.Return != nil && d.Return.Anew() || s.Verify(ctx) != nil {
				d.Add(Delegated, "the host's", "the node's own", s)
			}
		case *block.Engine: // before the weights, which need it
			if held, err := s.Held(); err == nil && held && s.Verify(ctx) != nil {
				d.Add("disk "+s.Disk.Name, "set otherwise", string(s.Engine), s)
			}
		case *shape.Priority:
			if now, err := s.Read(); err == nil && now != s.Asked {
				d.Add(proof.NetPriority.Key(s.If), string(now), string(s.Asked), s)
			}
		case *link.CheckSender:
			if now, want, err := s.Tags(); err == nil && now != want {
				d.Add("net."+s.If+".spoof", "not checked", "checked", s)
			}
		case *sysctl.Set:
			has, err := s.Drifted()
			if err != nil {
				continue // its process has ended
			}
			for _, name := range slices.Sorted(maps.Keys(has)) {
				d.Add("sysctls."+name, has[name], s.Values[name], &sysctl.Set{PIDFile: s.PIDFile, Values: map[string]string{name: s.Values[name]}})
			}
		}
	}
	limits, err := cgroup.Drifted(held)
	if err != nil {
		return d, err
	}
	for _, s := range limits {
		c := s.(*cgroup.Change)
		d.Add(c.Key, c.From, c.Asked, s)
	}
	for _, s := range shape.Drifted(rates) {
		c := s.(*shape.RateChange)
		d.Add(c.Key, c.From, c.Asked, s)
	}
	if list := devgroup.Of(cg, path); list != nil {
		list.Allow = known.Rules()
		if list.Holds() != nil {
			d.Add("devices", "others", list.String(), list)
		}
	}
	if c := weight.ClassStep(n, cg, path); c != nil && (c.Verify(ctx) != nil || d.Return != nil && len(d.Return.Gone) > 0) { // perhaps with the group above
		d.Add("class", "other values in "+c.Name, c.String(), c)
	}
	return d, nil
}

// Add adds a value that is not so any more, and the step that writes it again.
func (d *Drift) Add(key, has, asked string, s step.Step) {
	d.Steps, d.What = append(d.Steps, s), append(d.What, vnode.Difference{Key: key, Old: has, New: asked, Live: true})
}

// Lost says for a person what another program has changed.
func (d *Drift) Lost() (all []string) {
	for _, w := range d.What {
		text := fmt.Sprintf("%s is %s, not %s", w.Key, w.Old, w.New)
		if w.Key == Processes {
			text = "not in its cgroup: " + w.Old
		}
		all = append(all, text)
	}
	return all
}

// Clear adds the steps that take off a limit that the spec does not have, and another program may have set. with is the node with some
// value of it, path that of the node's group.
func (d *Drift) Clear(l layout.Layout, h host.Host, with *vnode.Node, path, key string) error {
	cg, err := host.ReadCgroups(h.Proc)
	if err != nil {
		return err
	}
	known, err := Table(l, h.Sys, with.Name)
	if err != nil {
		return err
	}
	here, where, err := Present(l, h.Sys, with, cg, known)
	if err != nil {
		return err
	}
	limits, err := cgroup.Held(here, cg, path, where)
	if err != nil {
		return nil //nolint:nilerr // the host has no such limit, so nobody can have set one
	}
	steps, err := cgroup.Drifted(cgroup.Cleared(limits, key))
	for _, s := range steps {
		d.Add(key, s.(*cgroup.Change).From, vnode.Max, s)
	}
	return err
}

// Only reduces the drift to the limits that these keys of berth set name, with the engines that weights need, and the processes and
// controllers, without which no limit holds. A group that is made anew gets all that it had.
func (d *Drift) Only(keys []string) {
	if d.Return != nil && d.Return.Anew() {
		return
	}
	var few Drift
	for i, s := range d.Steps {
		w := d.What[i]
		if w.Key == Processes || w.Key == Controllers || w.Key == Delegated || slices.ContainsFunc(keys, func(key string) bool {
			return key == w.Key || w.Key == "devices" && strings.HasPrefix(key, "devices") ||
				strings.HasPrefix(w.Key, "disk ") && strings.HasSuffix(key, ".weight")
		}) {
			few.Add(w.Key, w.Old, w.New, s)
		}
	}
	d.Steps, d.What = few.Steps, few.What
}

// Except leaves out limits that these changes of the spec write anyway.
func (d *Drift) Except(changes []vnode.Difference) {
	var rest Drift
	for i, s := range d.Steps {
		if w := d.What[i]; !slices.ContainsFunc(changes, func(c vnode.Difference) bool { return c.Key == w.Key }) {
			rest.Add(w.Key, w.Old, w.New, s)
		}
	}
	d.Steps, d.What = rest.Steps, rest.What
}

// Regive adds the step that gives a machine's guest the memory that was asked for, where it has other memory: the guest may have changed that
// itself, so the step is for a user who names it. live finds the machine's first process.
func (d *Drift) Regive(ctx context.Context, n *vnode.Node, live func(node string) (runner.Holder, error)) error {
	init, err := live(n.Name)
	if err != nil {
		return err
	}
	m, ok := init.(runner.Resizer)
	if !ok || m.AtBoot() == 0 { // of an older berth: it has what it booted with
		return nil
	}
	has, err := m.Memory(ctx)
	if err != nil {
		return refuse.Busyf("%s: what the guest has cannot be read: %w", proof.MachineMemory, err)
	}
	if asked := n.Machine.Memory; has != int64(asked) {
		s, err := m.Resize(has, int64(asked))
		if err != nil {
			return err
		}
		d.Add(string(proof.MachineMemory), vnode.Bytes(has).String(), asked.String(), s)
	}
	return nil
}

// byGroup reports whether a limit is one of the processes in the node's group, and not of an interface or of each process.
func byGroup(key string) bool {
	return !slices.ContainsFunc([]string{"net.", "rlimits.", "machine.", "oom_score_adj", "class.io.priority"}, func(p string) bool { return strings.HasPrefix(key, p) })
}

// Mark marks the limits that do not hold although their files have the values that were asked for.
func (d *Drift) Mark(limits []proof.Limit) []proof.Limit {
	for i, l := range limits {
		if d.Return != nil && l.Holds && byGroup(l.Key) {
			limits[i].Holds, limits[i].Why = false, d.Return.Why()
		}
	}
	for i, s := range d.Steps {
		w := d.What[i]
		l := proof.Limit{Key: w.Key, Asked: w.New, ReadBack: w.Old}
		switch s := s.(type) {
		case *devgroup.Devices:
			l = proof.Limit{Key: w.Key, Asked: s.String(), By: s.By(), Why: fmt.Sprint(s.Holds())}
		case *block.Engine:
			l.ReadBack, l.By, l.Why = "", w.New, fmt.Sprint(s.Verify(context.Background()))
		case *sysctl.Set:
			l.By = "sysctl"
		case *group.Delegate:
			l.By = "owner of " + s.Dir
		case *group.Enable:
			l.By = "cgroup.subtree_control"
		default:
			continue // it is among those that were read
		}
		limits = append(limits, l)
	}
	return limits
}
