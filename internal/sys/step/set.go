package step

import (
	"context"

	"berth/internal/sys/fault"
)

// Set is a live change: steps taken on a node that is up. They count only once the node's new spec is stored.
type Set struct {
	First int    `json:"first"` // number of its first step
	Spec  string `json:"spec"`  // identifies the new spec, once stored
}

// BeginSet begins a live change; the steps done from now on belong to it.
func (j *Journal) BeginSet(spec string) error {
	s := &Set{First: len(j.steps), Spec: spec}
	if err := j.write(record{Set: s}); err != nil {
		return err
	}
	j.Set = s
	fault.Point("set begun")
	return nil
}

// EndSet ends a live change, made or undone: its steps are not undone any more. When many changes have ended, their records
// are dropped, because a node may be changed all its life.
func (j *Journal) EndSet() error {
	if err := j.write(record{SetEnd: true}); err != nil {
		return err
	}
	j.endSet()
	fault.Point("set ended")
	j.shorten()
	return nil
}

// UndoSet undoes the steps of the live change and ends it.
func (j *Journal) UndoSet(ctx context.Context) error {
	if j.Set == nil {
		return nil
	}
	late := map[Step]bool{}
	for _, e := range j.steps[min(max(j.Set.First, 0), len(j.steps)):] {
		late[e.step] = true
	}
	if err := j.Undo(ctx, func(s Step) bool { return late[s] }); err != nil {
		return err
	}
	return j.EndSet()
}

func (j *Journal) endSet() {
	if j.Set == nil {
		return
	}
	for i := range j.steps {
		if i >= j.Set.First {
			j.steps[i].undone = true
		}
	}
	j.Set = nil
}
