package cgroup

import (
	"cmp"
	"fmt"
	"slices"

	"berth/internal/host/group"
	"berth/internal/sys/proof"
	"berth/internal/sys/step"
)

// Read reads limits back from the kernel, no matter which program wrote them last.
func Read(limits []*Limit) ([]proof.Limit, error) {
	all := make([]proof.Limit, 0, len(limits))
	for _, l := range limits {
		s := l.Limit
		s.Holds = len(l.Writes) > 0
		for _, w := range l.all() {
			got, err := w.Effect()
			if group.Gone(err) { // the kernel removed the file, with the disk or scheduler behind it
				s.ReadBack, s.Holds = "", false
				break
			}
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", l.Key, err)
			}
			s.ReadBack = l.person(w, got)
			if s.Holds = s.Holds && w.Holds(got); !s.Holds {
				break // the part that the node has of it is shown
			}
			above, err := w.Short()
			if err != nil {
				return nil, err
			}
			if above != "" {
				s.ReadBack, s.Holds, s.Why = l.person(w, above), false, "the group above protects no more than that for all in it"
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// Drifted returns the steps that write those limits again that the kernel has not any more, because another program wrote
// something else. It changes nothing. A limit that nothing honours has no step.
func Drifted(held []*Limit) ([]step.Step, error) {
	now, err := Read(held)
	if err != nil {
		return nil, err
	}
	var all []*Change
	for i, n := range now {
		if !n.Holds && len(held[i].Writes) > 0 {
			all = append(all, &Change{Limit: *held[i], From: cmp.Or(n.ReadBack, "nothing")})
		}
	}
	// As in swapFirst: of the two, memory is raised last.
	memory := slices.IndexFunc(all, func(c *Change) bool { return c.Of == proof.MemoryMax })
	swap := slices.IndexFunc(all, func(c *Change) bool { return c.Of == proof.MemorySwap && c.By == "memory.memsw" })
	if memory >= 0 && swap >= 0 {
		if has := group.Number(all[swap].Writes[0].File); has != nil && memsw(&all[swap].Limit) > uint64(*has) == (memory < swap) {
			all[memory], all[swap] = all[swap], all[memory]
		}
	}
	steps := make([]step.Step, len(all))
	for i, c := range all {
		steps[i] = c
	}
	return steps, nil
}

// Cleared returns the limits that take those of a key off.
func Cleared(limits []*Limit, key string) (all []*Limit) {
	for _, l := range limits {
		if l.Key == key {
			c := l.cleared()
			all = append(all, &c)
		}
	}
	return all
}
