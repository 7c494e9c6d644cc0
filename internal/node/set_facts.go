package node

import (
	"os"
	"slices"

	"berth/internal/block"
	"berth/internal/cgroup"
	"berth/internal/link"
	"berth/internal/plan"
	"berth/internal/refuse"
	"berth/internal/sriov"
	"berth/internal/vnode"
)

// limitFacts reads what a change of limits depends on, and no more: a set must not fail for an image or a runtime that
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
	if !sameRates(old, n) {
		if f.Links, err = link.ReadFacts(n.Network, n.Standing().NetPriority, sriov.Leases(b.Layout.VFLeases())); err != nil {
			return f, err
		}
	}
	known, err := b.table(n.Name)
	if err != nil {
		return f, err
	}
	if _, f.Disks, err = b.present(n, f.Host.Cgroups, known); err != nil {
		return f, err
	}
	if known.Empty() && slices.Equal(old.Devices, n.Devices) { // one that is gone must not be in the way of another change
		return f, nil
	}
	f.Devices, err = known.Grant("/proc", "/sys", n.Devices)
	return f, err
}

func sameRates(a, b *vnode.Node) bool {
	return slices.EqualFunc(a.Network, b.Network, func(x, y vnode.Network) bool { return x.Rate == y.Rate })
}

// checkLimits refuses what this host cannot hold of a node that does not run, before anything is changed.
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
