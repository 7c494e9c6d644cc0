package cgroup

import "fmt"

// Shown is one limit as berth show prints it.
type Shown struct {
	Key        string `json:"key"`
	Asked      string `json:"asked"`
	ReadBack   string `json:"read_back"`   // what the kernel says is in force now
	HonouredBy string `json:"honoured_by"` // the mechanism
	Note       string `json:"note,omitempty"`
	Holds      bool   `json:"holds"` // ReadBack is what was asked, apart from the kernel's rounding
}

// Read reads limits back from the kernel, whoever wrote them last.
func Read(limits []*Limit) ([]Shown, error) {
	all := make([]Shown, 0, len(limits))
	for _, l := range limits {
		s := Shown{Key: l.Key, Asked: l.Asked, HonouredBy: l.Mechanism, Note: l.Note, Holds: len(l.Writes) > 0}
		for _, w := range l.Writes {
			got, err := w.effect()
			if gone(err) { // the kernel removed the file, with the disk or scheduler behind it
				s.ReadBack, s.Holds = "", false
				break
			}
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", l.Key, err)
			}
			s.ReadBack = l.person(w, got)
			s.Holds = s.Holds && w.holds(got)
		}
		all = append(all, s)
	}
	return all, nil
}
