package plan

import (
	"slices"

	"berth/internal/spec/vnode"
	"berth/internal/storage/scratch"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// KeepsVolumes refuses a change of the shared ids after which the files in a scratch volume that stays would belong to others.
func KeepsVolumes(claims, wanted []step.Step, old, n *vnode.Node) error {
	if vnode.KeepsOwners(old.Users, n.Users) {
		return nil
	}
	for _, v := range scratch.Volumes(claims) {
		if slices.ContainsFunc(wanted, Same(v)) {
			return refuse.Busyf("node %s: with other users, the files in its scratch volume %s would belong to others; leave users as it was, or remove the node and make it again",
				n.Name, v.Target)
		}
	}
	return nil
}
