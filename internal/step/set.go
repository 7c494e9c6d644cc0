package step

import (
	"context"
	"io"
	"os"
)

// Set is a live change: steps taken on a node that is up. They count only once the node's new spec is stored.
type Set struct {
	First int    `json:"first"` // number of its first step
	Spec  string `json:"spec"`  // identifies the new spec, once stored
}

// mark is a position in a journal: the bytes and steps before it. The zero value is no position.
type mark struct {
	size  int64
	steps int
}

// BeginSet begins a live change; the steps done from now on belong to it.
func (j *Journal) BeginSet(spec string) error {
	s := &Set{First: len(j.steps), Spec: spec}
	if err := j.write(record{Set: s}); err != nil {
		return err
	}
	j.Set = s
	Fault("set begun")
	return nil
}

// EndSet ends a live change, made or undone: its steps are not undone any more. When many changes have ended, their records
// are dropped, because a node may be changed all its life.
func (j *Journal) EndSet() error {
	if err := j.write(record{SetEnd: true}); err != nil {
		return err
	}
	j.endSet()
	Fault("set ended")
	if j.sets != (mark{}) && j.size-j.sets.size > mostOfSets {
		j.forgetSets()
	}
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

// mostOfSets is how many bytes of ended live changes a journal keeps: some hundred changes, still read in a millisecond.
const mostOfSets = 64 << 10

// markSets is called before a record is added. It keeps sets at the first of the live changes that end the journal.
func (j *Journal) markSets(r record) {
	switch {
	case r.Set != nil && j.sets == mark{}:
		j.sets = mark{j.size, len(j.steps)}
	case r.Set == nil && j.Set == nil:
		j.sets = mark{}
	}
}

// forgetSets drops the records of ended live changes, which nobody needs any more. It replaces the file instead of
// truncating it, because another process may be reading it. An error only means that the journal stays long.
func (j *Journal) forgetSets() {
	tmp := j.path + ".tmp"
	if err := copyBegin(j.path, tmp, j.sets.size); err != nil {
		_ = os.Remove(tmp)
		return
	}
	Fault("journal written anew")
	if err := os.Rename(tmp, j.path); err != nil {
		_ = os.Remove(tmp)
		return
	}
	j.size, j.steps, j.torn, j.sets = j.sets.size, j.steps[:j.sets.steps], false, mark{}
}

// copyBegin copies the first bytes of a file to a new one.
func copyBegin(from, to string, size int64) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(dst, src, size)
	if closeErr := dst.Close(); err == nil {
		err = closeErr
	}
	return err
}
