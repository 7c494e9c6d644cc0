package cgroup

import (
	"fmt"
	"maps"
	"slices"

	"berth/internal/host"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// CheckHugePages refuses more huge pages than the host has free now, apart from those that the node may use already (has).
// They are not reserved for the node: another process may take them later.
func CheckHugePages(want, has vnode.HugePages, h host.Cgroups) error {
	for _, size := range slices.Sorted(maps.Keys(want)) {
		if !slices.Contains(h.HugePages, int64(size)) {
			continue // refused as a limit, with the sizes that this host has
		}
		more, free := want[size]-has[size], vnode.Bytes(h.HugeFree[int64(size)])
		if more <= free {
			continue
		}
		return refuse.Cannotf(reserve(size, more-free), "hugepages.%s %s: this host has %s of such pages free", size, want[size], free)
	}
	return nil
}

// reserve says how the host gets more huge pages of a size.
func reserve(size, lack vnode.Bytes) string {
	return fmt.Sprintf("reserve more: add %d to the number in /sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", lack/size, size>>10)
}
