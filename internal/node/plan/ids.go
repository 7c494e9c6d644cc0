package plan

import (
	"fmt"

	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/ids"
	"berth/internal/storage/mounts"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// ids returns the claims of a node's user and group ids.
func (f *Facts) ids(n *vnode.Node) []step.Step {
	if !n.UserNS() {
		return nil
	}
	steps := []step.Step{&ids.Claim{Dir: f.Layout.IDs(), Node: n.Name}}
	for part := range vnode.MoreRanges(n.Users) {
		steps = append(steps, &ids.Claim{Dir: f.Layout.IDs(), Node: n.Name, Part: part + 1})
	}
	if len(n.Users) > 0 {
		steps = append(steps, &ids.Users{Dir: f.Layout.IDs(), Node: n.Name, Extents: n.Users})
	}
	return steps
}

// checkUsers refuses ids of the host that this node may not share.
func (f *Facts) checkUsers(n *vnode.Node) error {
	if f.Command.Init != runner.NoInit && !n.KeepsPrivileges() {
		if field, why := n.SharesTooMuch(); why != "" {
			return refuse.Invalidf("node %s: %s: %s", n.Name, field, why)
		}
	}
	return f.Site.Check(n)
}

// Range returns the node's map of ids by its claims; the zero value without a user namespace. It is an error if a range that the map
// needs is not claimed: such an id would be the host's.
func Range(claims []step.Step) (mounts.IDs, error) {
	var own []uint32 // bases of its ranges
	var users []vnode.IDExtent
	for _, s := range claims {
		switch c := s.(type) {
		case *ids.Claim:
			base := c.Range().Base
			if base == 0 { // not claimed yet: any range will do to show the plan
				base = ids.First + uint32(c.Part)*ids.Size
			}
			for len(own) <= c.Part {
				own = append(own, 0)
			}
			own[c.Part] = base
		case *ids.Users:
			users = c.Extents
		}
	}
	if len(own) == 0 && len(users) == 0 {
		return mounts.IDs{}, nil
	}
	for i := range max(len(own), 1+vnode.MoreRanges(users)) {
		if i >= len(own) || own[i] < ids.First {
			return mounts.IDs{}, fmt.Errorf("part %d of its ids is not claimed: berth rm --force removes the node, berth apply makes it again", i)
		}
	}
	all := mounts.IDs{Base: own[0], Size: ids.Size}
	if len(users) > 0 {
		all.UIDs, all.GIDs = lines(users, own, false), lines(users, own, true)
	}
	return all, nil
}

func lines(users []vnode.IDExtent, own []uint32, gid bool) []mounts.IDLine {
	var all []mounts.IDLine
	for _, l := range vnode.IDLines(users, gid) {
		host := uint32(l.Inside)
		if !l.Same {
			host = own[l.Own/ids.Size] + uint32(l.Own%ids.Size)
		}
		all = append(all, mounts.IDLine{Inside: uint32(l.Inside), Host: host, Count: uint32(l.Count)})
	}
	return all
}
