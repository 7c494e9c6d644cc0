package inspect

import (
	"context"
	"slices"

	"berth/internal/host"
	"berth/internal/host/counters"
	"berth/internal/limit/cgroup"
	"berth/internal/limit/rlimit"
	"berth/internal/limit/weight"
	"berth/internal/network/shape"
	"berth/internal/node/plan"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/proof"
	"berth/internal/sys/step"
)

// Held has the limits of a node as the kernel has them, and the counters of its use.
type Held struct {
	Devices []Device
	Limits  []proof.Limit
	Outside []string        // processes that another program has moved out of the node's group
	Usage   *counters.Usage // nil if the node does not run
}

// Running is where a running node is found.
type Running struct {
	PID  int             // of its process 1
	Dev  *mounts.Running // nil if that is not known
	Live []step.Step
}

// ReadHeld reads the devices and the limits of a node, as the kernel has them; at is nil if it does not run. With an error, it also
// returns what it has read until then.
func ReadHeld(ctx context.Context, l layout.Layout, h host.Host, n *vnode.Node, at *Running) (all Held, err error) {
	cg, err := host.ReadCgroups(h.Proc)
	if err != nil {
		return all, err
	}
	known, err := Table(l, h.Sys, n.Name)
	if err != nil {
		return all, err
	}
	running, pid, group := at != nil, 0, plan.GroupPath(l, n)
	if running {
		pid = at.PID
		all.Devices = Devices(l, n, cg, known, running, at.Dev)
	} else {
		all.Devices = Devices(l, n, cg, known, running, nil)
		known = absent(h.Sys, n)
	}
	here, where, err := Present(l, h.Sys, n, cg, known)
	if err != nil {
		return all, err
	}
	defer func() { all.Limits = append(all.Limits, GoneLimits(ctx, l, n, here)...) }()
	limits, err := cgroup.Held(here, cg, group, where)
	if err != nil {
		return all, err
	}
	rates, err := plan.Rates(n, plan.Facts{Layout: l})
	if err != nil {
		return all, err
	}
	class, err := weight.Show(h, n, cg, group, pid, running)
	if err != nil {
		return all, err
	}
	priorities, err := Priorities(l, n, running)
	if err != nil {
		return all, err
	}
	rlimits, err := rlimit.Read(n, pid)
	if err != nil {
		return all, err
	}
	var drift Drift
	defer func() { all.Limits = drift.Mark(slices.Concat(all.Limits, priorities, rlimits, class)) }()
	if !running {
		for _, l := range limits {
			all.Limits = append(all.Limits, l.Limit)
		}
		for _, r := range rates {
			all.Limits = append(all.Limits, r.Limit)
		}
		return all, nil
	}
	usage := counters.Stats(cg, group)
	all.Usage = &usage
	if all.Limits, err = cgroup.Read(limits); err != nil {
		return all, err
	}
	if l := guestMemory(ctx, n, at.Live); l != nil {
		all.Limits = append(all.Limits, *l)
	}
	shown, err := shape.ReadRates(rates)
	all.Limits = append(all.Limits, shown...)
	if err == nil {
		drift, err = DriftOf(ctx, l, h, n, at.Live, proc.ReadContainers())
	}
	if drift.Return != nil {
		all.Outside = drift.Return.Whom()
	}
	return all, err
}

// guestMemory is how much memory the guest of a running machine has; nil for what is no machine, or one of an older berth, and where many
// nodes are looked at.
func guestMemory(ctx context.Context, n *vnode.Node, live []step.Step) *proof.Limit {
	m, ok := runner.FirstProcess(live).(runner.Resizer)
	if _, many := ctx.Value(onceKey{}).(func() fileServers); many || !ok || m.AtBoot() == 0 {
		return nil
	}
	l := &proof.Limit{Key: string(proof.MachineMemory), Asked: n.Machine.Memory.String(), By: "balloon", Note: "by the guest's good will: memory.max is the limit"}
	now, err := m.Memory(ctx)
	if err != nil {
		l.Note += "; it was not read: " + err.Error()
		return l
	}
	l.ReadBack, l.Holds = vnode.Bytes(now).String(), now == int64(n.Machine.Memory)
	return l
}
