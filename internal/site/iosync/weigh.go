package iosync

import (
	"cmp"
	"math"

	"berth/internal/site/iosync/want"
)

// mostWeight is the largest weight that BFQ knows.
const mostWeight = 1000

// weigh returns the weights of nodes against each other on a server's disk, if one of them has a class: their own weight times that of
// their class, as the groups of classes weigh on a host (docs/classes.md). It is nil if none has: each node has its own weight then, or
// none.
func weigh(all []Wish) map[string]int {
	weights, most, classes := map[string]float64{}, float64(mostWeight), false
	for _, w := range all {
		classes = classes || w.Class != ""
		group := cmp.Or(w.Class.Standing().IOWeight, want.Normal)
		weights[w.Node] = float64(cmp.Or(w.Want.Weight, want.Normal)) * float64(group) / want.Normal
		most = max(most, weights[w.Node])
	}
	if !classes {
		return nil
	}
	whole := map[string]int{}
	for node, w := range weights {
		whole[node] = max(1, int(math.Round(w/most*mostWeight)))
	}
	return whole
}
