package node

import (
	"context"
	"slices"

	"berth/internal/cgroup"
	"berth/internal/counters"
	"berth/internal/detail"
	"berth/internal/limit"
	"berth/internal/mounts"
	"berth/internal/plan"
	"berth/internal/proc"
	"berth/internal/rlimit"
	"berth/internal/scratch"
	"berth/internal/shape"
	"berth/internal/standing"
	"berth/internal/vnode"
)

// Detail is what berth show tells of one node.
type Detail struct {
	Status
	detail.Within
	Hostname string          `json:"hostname"`
	Phase    string          `json:"phase"` // of its live journal; "down" if it does not run
	Command  []string        `json:"command,omitempty"`
	IDs      string          `json:"ids"` // the node's ids as the host has them
	Cgroup   string          `json:"cgroup"`
	Links    []detail.Link   `json:"links,omitempty"`
	Devices  []detail.Device `json:"devices,omitempty"`
	Limits   []limit.Limit   `json:"limits,omitempty"`
	Scratch  []scratch.Place `json:"scratch,omitempty"`
	Outside  []string        `json:"outside,omitempty"` // processes that another program has moved out of the node's group
	Usage    *counters.Usage `json:"usage,omitempty"`
}

// showLimits reads the limits of a node, as the kernel has them.
func (b *Berth) showLimits(ctx context.Context, n *vnode.Node, d *Detail, running bool) error {
	cg, err := b.cgroups()
	if err != nil {
		return err
	}
	known, err := b.table(n.Name)
	if err != nil {
		return err
	}
	var dev *mounts.Running
	if in, err := b.running(n.Name); err == nil {
		dev = &in
	}
	d.Devices = detail.Devices(b.Layout, n, cg, known, running, dev)
	if !running {
		known = b.absent(n)
	}
	here, where, err := b.present(n, cg, known)
	if err != nil {
		return err
	}
	defer func() { d.Limits = append(d.Limits, detail.GoneLimits(n, here)...) }()
	limits, err := cgroup.Held(here, cg, d.Cgroup, where)
	if err != nil {
		return err
	}
	rates, err := plan.Rates(n, plan.Facts{Layout: b.Layout})
	if err != nil {
		return err
	}
	class, err := standing.Show(b.Host, n, cg, d.Cgroup, d.PID, running)
	if err != nil {
		return err
	}
	priorities, err := detail.Priorities(b.Layout, n, running)
	if err != nil {
		return err
	}
	pid := 0
	if running {
		pid = d.PID
	}
	rlimits, err := rlimit.Read(n, pid)
	if err != nil {
		return err
	}
	var drift detail.Drift
	defer func() { d.Limits = drift.Mark(slices.Concat(d.Limits, priorities, rlimits, class)) }()
	if !running {
		for _, l := range limits {
			d.Limits = append(d.Limits, l.Limit)
		}
		for _, r := range rates {
			d.Limits = append(d.Limits, r.Limit)
		}
		return nil
	}
	usage := counters.Stats(cg, d.Cgroup)
	d.Usage = &usage
	if d.Limits, err = cgroup.Read(limits); err != nil {
		return err
	}
	shown, err := shape.ReadRates(rates)
	d.Limits = append(d.Limits, shown...)
	if err == nil {
		_, drift, err = b.drift(ctx, n, proc.ReadContainers())
	}
	if drift.Return != nil {
		d.Outside = drift.Return.Whom()
	}
	return err
}
