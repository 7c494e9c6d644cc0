package step

import (
	"context"
	"fmt"
	"slices"
)

// Redo does a step of the journal again after the caller has changed its fields, because the thing that it acts on has moved
// since a boot. First it writes the new fields to the journal and marks the step as not done: Unfinished reports it until Redo
// is through.
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
	return j.carryOut(ctx, i, asked, "again ")
}
