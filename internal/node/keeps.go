package node

import (
	"fmt"
	"slices"

	"berth/internal/image"
	"berth/internal/node/plan"
	"berth/internal/node/records"
	"berth/internal/spec/template"
	"berth/internal/spec/vnode"
	"berth/internal/storage/scratch"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// keepsImage refuses to start a node of a template over files that were written on another image, when the image's name stands for a new
// image now. It applies to a user who fills the template in, to an operator who starts the node, and to restarts by the spec.
func (b *Berth) keepsImage(old *vnode.Node, next *records.Stored, is image.Image) error {
	n := next.Now
	stays := records.SameRoot(old, n) && (n.Delta.In != vnode.InMemory || len(n.Scratch) > 0)
	asks := b.rights != nil || (b.guard != nil || b.byPolicy) && len(next.Rights) > 0
	if !asks || !stays || next.Covers == "" || next.Covers == is.Content() {
		return nil
	}
	return template.Refuse(n.Name, fmt.Sprintf(": image %s is another one now than the one over which it has written", n.Image))
}

// keepsVolumes refuses a change of the shared ids after which the files in a scratch volume that stays would belong to others.
func keepsVolumes(claims, wanted []step.Step, old, n *vnode.Node) error {
	if vnode.KeepsOwners(old.Users, n.Users) {
		return nil
	}
	for _, v := range scratch.Volumes(claims) {
		if slices.ContainsFunc(wanted, plan.Same(v)) {
			return refuse.Busyf("node %s: with other users, the files in its scratch volume %s would belong to others; leave users as it was, or remove the node and make it again",
				n.Name, v.Target)
		}
	}
	return nil
}
