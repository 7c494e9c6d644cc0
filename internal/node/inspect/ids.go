package inspect

import (
	"strings"

	"berth/internal/spec/vnode"
	"berth/internal/storage/ids"
	"berth/internal/sys/layout"
)

// IDs tells which ids of the host are a node's own.
func IDs(l layout.Layout, n *vnode.Node) string {
	var all []string
	for part := range vnode.MoreRanges(n.Users) + 1 {
		if r, ok, err := ids.OfPart(l.IDs(), n.Name, part); err == nil && ok {
			all = append(all, r.String())
		}
	}
	if len(all) == 0 {
		return "none: root inside is root outside"
	}
	return strings.Join(all, ", ")
}
