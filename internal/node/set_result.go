package node

import (
	"slices"
	"strings"

	"berth/internal/cgroup"
	"berth/internal/link"
	"berth/internal/step"
	"berth/internal/vnode"
)

// resultsOf is what a step of a live change has set.
func resultsOf(s step.Step) []SetResult {
	switch c := s.(type) {
	case *cgroup.Change:
		return []SetResult{{Key: c.Key, Asked: c.Asked, ReadBack: c.ReadBack, By: c.Mechanism}}
	case *cgroup.RLimit:
		return []SetResult{{Key: c.Key, Asked: c.Asked, ReadBack: c.ReadBack, By: cgroup.RLimitMechanism}}
	case *link.RateChange:
		return []SetResult{{Key: c.Key, Asked: c.Asked, ReadBack: c.ReadBack, By: c.Mechanism()}}
	}
	return deviceResults(s)
}

// unchanged adds to what steps have set those keys that needed none: what was so already, and what the kernel knows
// nothing of.
func (b *Berth) unchanged(done []SetResult, changes []KeyValue, n *vnode.Node) ([]SetResult, error) {
	var shown []cgroup.Shown
	for _, c := range changes {
		if slices.ContainsFunc(done, func(r SetResult) bool { return r.Key == c.Key }) {
			continue
		}
		r := SetResult{Key: c.Key, Asked: c.Value}
		switch {
		case c.Key == "restart":
			r.ReadBack, r.By = string(n.Restart), "keeper"
			if n.Restart == "" {
				r.ReadBack = string(vnode.Never)
			}
		case strings.HasPrefix(c.Key, "rlimits.") && c.Value == vnode.Max: // with the next start
		case strings.HasPrefix(c.Key, "devices"):
			continue
		case c.Value == vnode.Max:
			r.ReadBack, r.By = vnode.Max, "no limit"
		default:
			if shown == nil {
				d := &Detail{Cgroup: b.groupPath(n.Name)}
				if err := b.showLimits(n, d, true); err != nil {
					return nil, err
				}
				shown = d.Limits
			}
			if i := slices.IndexFunc(shown, func(s cgroup.Shown) bool { return s.Key == c.Key }); i >= 0 {
				r.ReadBack, r.By = shown[i].ReadBack, shown[i].HonouredBy
			}
		}
		done = append(done, r)
	}
	return done, nil
}
