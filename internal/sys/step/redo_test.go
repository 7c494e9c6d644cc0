package step

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRedo changes the path of a step. The journal has the new path before the step is done, and undoes that one.
func TestRedo(t *testing.T) {
	j, dir := start(t)
	a, b := &fileStep{Path: filepath.Join(dir, "a")}, &fileStep{Path: filepath.Join(dir, "b")}
	for _, f := range []*fileStep{a, b} {
		if err := j.Do(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.SetPhase(Up); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	j = reopen(t, j)
	s := j.Steps()[0].(*fileStep)
	if err := os.Remove(s.Path); err != nil { // as a boot does
		t.Fatal(err)
	}
	s.Path, s.fail = filepath.Join(dir, "c"), boom
	if err := j.Redo(t.Context(), s); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	if half := reopen(t, j); cmp.Diff([]string{"c", "b"}, paths(half)) != "" || !half.Unfinished() {
		t.Errorf("when it failed: %v, unfinished %v", paths(half), half.Unfinished())
	}
	s.fail, s.Made = nil, false
	if err := j.Redo(t.Context(), s); err != nil {
		t.Error(err)
	}
	got := reopen(t, j)
	if diff := cmp.Diff([]string{"c", "b"}, paths(got)); diff != "" || got.Phase != Up || got.Unfinished() || !got.Steps()[0].(*fileStep).Made {
		t.Errorf("phase %s, unfinished %v, %s", got.Phase, got.Unfinished(), diff)
	}
	if err := got.Redo(t.Context(), &fileStep{}); err == nil {
		t.Error("a step was done again that the journal does not have")
	}
	if err := got.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
