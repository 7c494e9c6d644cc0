package node

import (
	"berth/internal/node/plan"
	"berth/internal/spec/vnode"
	"berth/internal/sys/step"
)

// same matches claims for the same thing: a step may have filled in a field itself (a base, an address).
func same(s step.Step) func(step.Step) bool {
	return func(t step.Step) bool { return s.Kind() == t.Kind() && plan.ClaimKey(s) == plan.ClaimKey(t) }
}

func allLive(all []vnode.Difference) bool { return len(needRestart(all)) == 0 }

func needRestart(all []vnode.Difference) []string {
	var keys []string
	for _, d := range vnode.ByEntry(all) {
		if !d.Live {
			keys = append(keys, d.Key)
		}
	}
	return keys
}
