package step

import (
	"bytes"
	"context"
	"fmt"
	"slices"
)

// Redo does a step of the journal again after the caller has changed its fields, because what it acts on has moved since a boot.
// First it writes the new fields to the journal and marks the step as not done: Unfinished reports it until Redo is through.
func (j *Journal) Redo(ctx context.Context, s Step) error {
	i := slices.IndexFunc(j.steps, func(e entry) bool { return e.step == s })
	if i < 0 {
		return fmt.Errorf("do %s again: the journal of %s does not have it", s.Kind(), j.Node)
	}
	asked, err := marshal(s)
	if err == nil {
		err = j.write(record{Done: &i, Step: asked}, record{Undo: &i})
	}
	if err != nil {
		return err
	}
	j.steps[i].done, j.steps[i].undone = false, false
	Fault("begun again " + s.Kind())
	if err := s.Do(ctx); err != nil {
		return err
	}
	Fault("did again " + s.Kind())
	if err := s.Verify(ctx); err != nil {
		return err
	}
	done, err := marshal(s)
	if err != nil {
		return err
	}
	if bytes.Equal(done, asked) {
		done = nil
	}
	if err := j.write(record{Done: &i, Step: done}); err != nil {
		return err
	}
	j.steps[i].done = true
	Fault("done again " + s.Kind())
	return nil
}
