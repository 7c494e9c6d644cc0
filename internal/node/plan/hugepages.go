package plan

import (
	"maps"
	"path/filepath"
	"slices"

	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
)

// hugePageMounts gives a node a file system for each size of huge pages that it may use: the smallest size at
// /dev/hugepages, where programs look for it, the others at /dev/hugepages-SIZE.
func hugePageMounts(n *vnode.Node, stage string) (staged []mounts.Stage, in []runner.Mount) {
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		limit := n.HugePages[size]
		if limit == 0 {
			continue
		}
		target := "/dev/hugepages"
		if len(staged) > 0 {
			target += "-" + size.String()
		}
		at := filepath.Join(stage, "huge-"+size.String())
		staged = append(staged, mounts.Stage{At: at, Huge: &mounts.HugePages{Page: size, Size: limit}})
		if !slices.ContainsFunc(n.Mounts, func(m vnode.Mount) bool { return m.Target == target }) { // else the user's own mount is there
			in = append(in, runner.Mount{Source: at, Target: target, Type: "bind", Options: []string{"bind"}})
		}
	}
	return staged, in
}
