package cgroup

import (
	"fmt"

	"berth/internal/group"
	"berth/internal/limit"
)

// Read reads limits back from the kernel, whoever wrote them last.
func Read(limits []*Limit) ([]limit.Limit, error) {
	all := make([]limit.Limit, 0, len(limits))
	for _, l := range limits {
		s := l.Limit
		s.Holds = len(l.Writes) > 0
		for _, w := range l.Writes {
			got, err := w.Effect()
			if group.Gone(err) { // the kernel removed the file, with the disk or scheduler behind it
				s.ReadBack, s.Holds = "", false
				break
			}
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", l.Key, err)
			}
			s.ReadBack = l.person(w, got)
			s.Holds = s.Holds && w.Holds(got)
		}
		all = append(all, s)
	}
	return all, nil
}
