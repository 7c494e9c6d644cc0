package plan

import (
	"berth/internal/packed"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// Supported refuses (exit 3) the parts of a spec that this version of Berth does not implement yet.
func Supported(n *vnode.Node) error {
	for _, c := range []struct {
		asked  bool
		what   string
		remedy string
	}{
		{n.Image.Kind == vnode.FileImage && packed.KindOf(n.Image.Ref) == "", "image file: of an archive", "berth image import it, and use oci:"},
	} {
		if c.asked {
			return notYet(n, c.what, c.remedy)
		}
	}
	for _, io := range n.IO {
		if io.Filesystem != "" {
			return notYet(n, "io "+io.Name+": filesystem", "limit a disk of this host with device or path")
		}
	}
	return nil
}

func notYet(n *vnode.Node, what, remedy string) error {
	return refuse.Cannotf(remedy, "node %s: this version of Berth does not do %s yet", n.Name, what)
}
