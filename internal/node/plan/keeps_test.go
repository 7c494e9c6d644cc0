package plan

import (
	"testing"

	"berth/internal/spec/vnode"
	"berth/internal/storage/scratch"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// TestUsersKeepVolumes: the files in a scratch volume keep their owners inside, or the change of users is refused.
func TestUsersKeepVolumes(t *testing.T) {
	volume := &scratch.Volume{Node: "n", Target: "/tmp", Size: 1 << 30, FS: "ext4", Mapped: true}
	bigger := &scratch.Volume{Node: "n", Target: "/tmp", Size: 2 << 30, FS: "ext4", Mapped: true}
	none := &vnode.Node{Name: "n"}
	shares := &vnode.Node{Name: "n", Users: []vnode.IDExtent{{From: 1000, Count: 10, As: vnode.SameIDs}}}
	for name, c := range map[string]struct {
		claims, wanted []step.Step
		old, new       *vnode.Node
		refused        bool
	}{
		"no volume":             {nil, nil, none, shares, false},
		"the same users":        {[]step.Step{volume}, []step.Step{volume}, shares, shares, false},
		"other users":           {[]step.Step{volume}, []step.Step{volume}, none, shares, true},
		"taken away":            {[]step.Step{volume}, []step.Step{volume}, shares, none, true},
		"another volume":        {[]step.Step{volume}, []step.Step{bigger}, none, shares, false},
		"the volume is removed": {[]step.Step{volume}, nil, none, shares, false},
	} {
		if err := KeepsVolumes(c.claims, c.wanted, c.old, c.new); (refuse.KindOf(err) == refuse.Busy) != c.refused || err != nil && !c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
