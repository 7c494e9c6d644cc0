package plan

import (
	"berth/internal/limit/cgroup"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proof"
)

// Differences are those of two specs of a running node. A machine's memory can grow while it runs, but not above what it booted with.
func Differences(old, n *vnode.Node, init runner.Holder) []vnode.Difference {
	all := vnode.Diff(old, n)
	for i, d := range all {
		if m, ok := init.(runner.Resizer); ok && d.Key == string(proof.MachineMemory) {
			all[i].Live = int64(n.Machine.Memory) <= m.AtBoot()
		}
	}
	return all
}

// AllLive reports whether none of these needs a restart.
func AllLive(all []vnode.Difference) bool { return len(NeedRestart(all)) == 0 }

// NeedRestart returns the keys of those that need a restart.
func NeedRestart(all []vnode.Difference) []string {
	var keys []string
	for _, d := range vnode.ByEntry(all) {
		if !d.Live {
			keys = append(keys, d.Key)
		}
	}
	return keys
}

// CheckMemory refuses limits of memory below what a running node uses now.
func CheckMemory(old, new *vnode.Node, f Facts) error {
	return cgroup.CheckMemory(new.Memory, old.Memory, f.Host.Cgroups, GroupPath(f.Layout, new))
}

// Shrinks reports whether a machine's guest is to have less memory: that is the first step of Change.
func Shrinks(old, new *vnode.Node) bool {
	return new.IsMachine() && new.Machine.Memory < old.Machine.Memory
}
