package node

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"berth/internal/cgroup"
	"berth/internal/host"
	"berth/internal/link"
	"berth/internal/oci"
	"berth/internal/plan"
	"berth/internal/sriov"
	"berth/internal/vnode"
)

// showClass tells what a node has from its class, beside what its spec asks for.
func showClass(n *vnode.Node, cg host.Cgroups, d *Detail, running bool) ([]cgroup.Shown, error) {
	all, err := cgroup.ShowClass(n, cg, d.Cgroup, running)
	if err != nil || n.Class == "" && n.OOMScoreAdj == nil {
		return all, err
	}
	if n.Standing().IOPolicy == "idle" {
		all = append(all, showPriority(n, d, running))
	}
	s := cgroup.Shown{Key: "oom_score_adj", Asked: strconv.Itoa(n.Standing().OOMScore), HonouredBy: "the kernel's OOM killer"}
	if n.OOMScoreAdj == nil {
		s.Note = "from class " + string(n.Class)
	}
	if running {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", d.PID))
		if err == nil {
			s.ReadBack = strings.TrimSpace(string(text))
		}
		if s.Holds = s.ReadBack == s.Asked; !s.Holds {
			s.Note += "; this process may not protect others when memory is short: that takes CAP_SYS_RESOURCE"
		}
	}
	return append(all, s), nil
}

// showPriority tells the I/O priority of the node's process 1, which those that it starts inherit.
func showPriority(n *vnode.Node, d *Detail, running bool) cgroup.Shown {
	s := cgroup.Shown{
		Key: "class.io.priority", Asked: "idle", HonouredBy: "ioprio",
		Note: "from class " + string(n.Class) + "; on disks with the scheduler mq-deadline or bfq; a process may raise its own",
	}
	if !running {
		return s
	}
	idle, err := oci.IOIdle(d.PID)
	if s.Holds = err == nil && idle; s.Holds {
		s.ReadBack = "idle"
	}
	return s
}

// showPriorities tells what of a node's packets goes first.
func (b *Berth) showPriorities(n *vnode.Node, running bool) (all []cgroup.Shown, err error) {
	f := plan.Facts{Layout: b.Layout}
	if f.Links, err = link.ReadFacts(n.Network, n.Standing().NetPriority, sriov.Leases(b.Layout.VFLeases())); err != nil {
		return nil, err
	}
	for _, s := range plan.Priorities(n, f, running) {
		all = append(all, cgroup.Shown(s))
	}
	return all, nil
}
