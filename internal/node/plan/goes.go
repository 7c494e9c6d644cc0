package plan

import (
	"slices"
	"strings"

	"berth/internal/image"
	"berth/internal/storage/scratch"
	"berth/internal/sys/step"
)

// Same matches claims for the same thing: a step may have filled in a field itself (a base, an address).
func Same(s step.Step) func(step.Step) bool {
	return func(t step.Step) bool { return s.Kind() == t.Kind() && ClaimKey(s) == ClaimKey(t) }
}

// Goes returns which of a node's claims go when it gets a spec with others: those that are not wanted any more. A delta belongs to the root
// that it covers and goes with it.
func Goes(wanted []step.Step, newRoot bool) func(step.Step) bool {
	return func(s step.Step) bool {
		_, disk := s.(*scratch.Disk)
		return newRoot && (disk || strings.HasPrefix(s.Kind(), "image.")) || !slices.ContainsFunc(wanted, Same(s))
	}
}

// Removes says which of a node's claims go with the files that the node wrote there, when it gets a spec with others.
func Removes(claims, wanted []step.Step, newRoot bool) (all []string) {
	goes := Goes(wanted, newRoot)
	for _, s := range claims {
		switch s.(type) {
		case *scratch.Volume, *scratch.Disk, *image.Delta:
			if goes(s) {
				all = append(all, s.String())
			}
		}
	}
	return all
}
