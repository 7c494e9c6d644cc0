package cgroup

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// The mechanisms that honour a weight of block I/O.
const (
	byBFQ  = "bfq"
	byCost = "io.cost"
)

// Engines returns the steps that switch disks to the I/O engines that a spec asks for. It is pure. by is the node's live
// folder; loans is where all nodes of the host record which disks they switched.
func Engines(n *vnode.Node, h host.Cgroups, disks map[string]block.Disk, loans block.Loans, by string) ([]step.Step, error) {
	var all []step.Step
	for _, io := range n.IO {
		if io.Engine == "" {
			continue
		}
		disk, key := disks[io.Name], "io."+io.Name+".engine "+string(io.Engine)
		if err := refuseQueues(disk, key); err != nil {
			return nil, err
		}
		for _, q := range disk.Queues {
			if err := refuseEngine(q, io.Engine, io.Model, h, key); err != nil {
				return nil, err
			}
			e := &block.Engine{Sys: "/sys", Loans: loans, Disk: q, Engine: io.Engine, Model: io.Model, By: by}
			if io.Engine == vnode.IOCost {
				e.V2 = h.V2
			}
			all = append(all, e)
		}
	}
	return all, nil
}

// refuseQueues refuses a disk without a queue of requests: a weight has no effect on it.
func refuseQueues(d block.Disk, key string) error {
	if len(d.Queues) > 0 {
		return nil
	}
	return refuse.Cannotf("give read and write rates instead: they hold there", "%s: a weight has no effect on %s", key, cmp.Or(d.NoWeight, d.Name))
}

// refuseEngine refuses an engine to which this host cannot switch a disk.
func refuseEngine(q block.Queue, want vnode.Engine, model string, h host.Cgroups, key string) error {
	if err := block.Conflict(q, q.Loan, want, model); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	lent := q.Loan != nil && len(q.Loan.By) > 0
	switch {
	case want.IsBFQ() && !q.BFQ:
		return refuse.Cannotf("boot a kernel with CONFIG_IOSCHED_BFQ, or its module bfq", "%s: this kernel has no BFQ for disk %s", key, q.Name)
	case want.IsBFQ() && q.CostOn && !lent:
		return refuse.Cannotf("leave engine out: io.cost honours weights", "%s: io.cost shares disk %s out already", key, q.Name)
	case want == vnode.IOCost && h.Has("blkio") == "v1":
		return refuse.Cannotf("use engine: bfq, or "+unifiedRemedy, "%s: io.cost needs the io controller on cgroup v2; here it is on v1", key)
	case want == vnode.IOCost && !q.Cost:
		return refuse.Cannotf("use engine: bfq, or boot a kernel with CONFIG_BLK_CGROUP_IOCOST", "%s: this kernel has no io.cost", key)
	case want == vnode.IOCost && model == "" && !q.CostModel && !q.CostOn:
		return refuse.Cannotf("berth doctor --calibrate /dev/"+q.Name+" measures one, to be given as model",
			"%s: nobody has told io.cost what disk %s can do, and without a model that fits, weights have no effect", key, q.Name)
	}
	return nil
}

// weigh returns the mechanism that enforces a weight on the disks under an entry. If there is none, it refuses the weight (exit
// 3).
func weigh(a ask, h host.Cgroups, file func(name string) string) (hold, error) {
	key := a.key + " " + a.asked
	if err := refuseQueues(a.disk, key); err != nil {
		return hold{}, err
	}
	v1 := h.Has("blkio") == "v1"
	var all hold
	for _, q := range a.disk.Queues {
		by, err := engineOf(q, a.engine, v1, key)
		if err != nil {
			return hold{}, err
		}
		all.mechanism = by
		bfq := group.Write{File: file("io.bfq.weight"), Device: q.Number(), Value: strconv.FormatInt(min(a.value, group.MaxBFQWeight), 10), None: "default"}
		if v1 {
			bfq.File = file("blkio.bfq.weight_device")
		}
		if by == byCost {
			all.writes = append(all.writes, group.Write{File: file("io.weight"), Device: q.Number(), Value: strconv.FormatInt(a.value, 10), None: "default"})
		}
		switch {
		case by != byCost:
			all.writes = append(all.writes, bfq)
		case q.Scheduler == byBFQ: // BFQ applies its own weight too
			all.writes = append(all.writes, bfq)
			all.mechanism = byCost + " and " + byBFQ
		}
	}
	all.note = weightNote(a, all.mechanism, v1)
	return all, nil
}

// engineOf returns the engine that honours a weight on a disk: the one asked for, to which a step switches the disk, else
// the one that the disk has.
func engineOf(q block.Queue, asked vnode.Engine, v1 bool, key string) (by string, err error) {
	lent := q.Loan != nil && len(q.Loan.By) > 0 && q.Loan.Switched()
	switch {
	case asked == vnode.IOCost:
		return byCost, nil
	case asked.IsBFQ():
		return byBFQ, nil
	case lent:
		return "", refuse.Cannotf("add engine: "+string(q.Loan.Engine)+" to the io entry of this node too",
			"%s: disk %s has %s only as long as node %s runs", key, q.Name, q.Loan.Engine, q.Loan.Names())
	case q.CostOn && !v1:
		return byCost, nil
	case q.Scheduler == byBFQ:
		return byBFQ, nil
	}
	return "", refuse.Cannotf(weightRemedy(q, v1), "%s: nothing shares disk %s out by weight (its scheduler is %s)", key, q.Name, q.Scheduler)
}

// weightRemedy says how to give a disk an engine.
func weightRemedy(q block.Queue, v1 bool) string {
	switch {
	case q.BFQ:
		return fmt.Sprintf("add engine: bfq to the io entry, and berth switches the disk while the node runs; or for good: echo bfq > /sys/block/%s/queue/scheduler", q.Name)
	case q.Cost && !v1:
		return "add engine: iocost to the io entry, with the model that berth doctor --calibrate /dev/" + q.Name + " prints"
	}
	return "boot a kernel with CONFIG_IOSCHED_BFQ, or give read and write rates"
}

// narrow returns the first disk whose BFQ holds too few requests (block.BFQRequests) and is not set up by this node; nil if none.
func narrow(a ask, mechanism string) *block.Queue {
	i := slices.IndexFunc(a.disk.Queues, func(q block.Queue) bool { return q.Requests > 0 && q.Requests < block.BFQRequests })
	if i < 0 || a.engine != "" || !strings.HasSuffix(mechanism, byBFQ) {
		return nil
	}
	return &a.disk.Queues[i]
}

// weightNote says where a weight acts and where it has no effect.
func weightNote(a ask, mechanism string, v1 bool) string {
	var notes []string
	if d := a.disk; len(d.Queues) > 0 && d.Queues[0].Number() != d.Number() {
		names := make([]string, len(d.Queues))
		for i, q := range d.Queues {
			names[i] = q.Name
		}
		notes = append(notes, "acts on "+strings.Join(names, " and ")+", below "+d.Name)
	} else if note := diskNote(d); note != "" {
		notes = append(notes, note)
	}
	if a.value > group.MaxBFQWeight && strings.HasSuffix(mechanism, byBFQ) {
		notes = append(notes, fmt.Sprintf("BFQ knows 1 to %d: it takes %d", group.MaxBFQWeight, group.MaxBFQWeight))
	}
	notes = append(notes, "at queue depth 1 it has no effect")
	if q := narrow(a, mechanism); q != nil {
		notes = append(notes, fmt.Sprintf("with more than its share of %d requests in flight a node gets less (/sys/block/%s/queue/nr_requests; engine: bfq makes it %d)",
			q.Requests, q.Name, block.BFQRequests))
	}
	switch {
	case a.engine == vnode.BFQStrict:
		notes = append(notes, "the disk gets one request at a time")
	case a.rated && mechanism == byBFQ:
		notes = append(notes, "beside a rate it holds with engine bfq-strict or iocost: else requests wait behind others in the disk")
	}
	if v1 {
		notes = append(notes, "cgroup v1 gives direct and synchronous I/O a share, not writes through the page cache")
	}
	if mechanism != byBFQ && a.engine == "" && !a.disk.Queues[0].CostModel {
		notes = append(notes, "by the kernel's own model of the disk: berth doctor --calibrate measures one that fits")
	}
	return strings.Join(notes, "; ")
}
