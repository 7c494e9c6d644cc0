package node

import (
	"context"
	"path/filepath"
	"testing"

	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

// served is the step of a helper that gets another process each time it is done.
type served struct {
	Helper proc.ID `json:"helper"`
	next   int
}

func (s *served) Kind() string                 { return "test.served" }
func (s *served) String() string               { return "a helper" }
func (s *served) Process() proc.ID             { return s.Helper }
func (s *served) Verify(context.Context) error { return nil }
func (s *served) Undo(context.Context) error   { return nil }
func (s *served) Do(context.Context) error {
	s.next++
	s.Helper = proc.ID{PID: 4 << 20, Start: s.Helper.Start + 1}
	return nil
}

// TestRedoHelper: the journal names the new process of a helper; the end of one that the node no longer has changes nothing.
func TestRedoHelper(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := step.Create(path, "node", "boot")
	if err != nil {
		t.Fatal(err)
	}
	h := &served{}
	if err := j.Do(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	first := h.Helper
	if _, err := redoHelper(t.Context(), j, first); err == nil {
		t.Error("a helper of a node that is being made was replaced")
	}
	if err := j.SetPhase(step.Up); err != nil {
		t.Fatal(err)
	}
	if _, err := redoHelper(t.Context(), j, proc.ID{PID: 1, Start: 1}); err == nil || h.next != 1 {
		t.Errorf("the end of a process that is no helper: %v, done %d times", err, h.next)
	}
	got, err := redoHelper(t.Context(), j, first)
	if err != nil || got == first {
		t.Errorf("replaced by %+v, %v", got, err)
	}
	again, err := step.Open(path, step.Kinds{"test.served": func() step.Step { return &served{} }})
	if err != nil {
		t.Fatal(err)
	}
	if s := again.Steps(); len(s) != 1 || s[0].(*served).Helper != got || again.Unfinished() {
		t.Errorf("the journal says %+v, want %+v", s, got)
	}
}
