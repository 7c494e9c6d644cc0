package node

import (
	"fmt"

	"berth/internal/image"
	"berth/internal/node/records"
	"berth/internal/spec/template"
	"berth/internal/spec/vnode"
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
