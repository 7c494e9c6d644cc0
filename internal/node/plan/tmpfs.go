package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"berth/internal/runner"
	"berth/internal/spec/vnode"
)

// withTmpfs adds a node's file systems in memory to its other mounts, and those of scratch volumes in memory. With any of these,
// or with other scratch volumes, each mount comes after those that it lies in.
func withTmpfs(mounts []runner.Mount, n *vnode.Node, scratch []vnode.Tmpfs) []runner.Mount {
	if len(n.Tmpfs)+len(n.Scratch) == 0 {
		return mounts
	}
	for _, t := range slices.Concat(n.Tmpfs, scratch) {
		options := []string{"nosuid", "nodev", "mode=" + cmp.Or(t.Mode, "1777")}
		if size := cmp.Or(t.Size, n.Memory.Max/2); size > 0 {
			options = append(options, fmt.Sprintf("size=%d", int64(size)))
		}
		mounts = append(mounts, runner.Mount{Source: "tmpfs", Target: t.Target, Type: "tmpfs", Options: options})
	}
	slices.SortStableFunc(mounts, func(a, b runner.Mount) int {
		return cmp.Compare(strings.Count(a.Target, "/"), strings.Count(b.Target, "/"))
	})
	return mounts
}
