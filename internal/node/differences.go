package node

import (
	"berth/internal/spec/vnode"
)

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
