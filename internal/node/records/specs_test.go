package records

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/runner"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

// made is a step that made a process on some layers.
type made struct {
	runner.Holder `json:"-"`
	On            []string `json:"on"`
}

func (m *made) Kind() string                 { return "test.made" }
func (m *made) String() string               { return "a first process" }
func (m *made) First() proc.ID               { return proc.ID{PID: os.Getpid()} }
func (m *made) Layers() []string             { return m.On }
func (m *made) Do(context.Context) error     { return nil }
func (m *made) Verify(context.Context) error { return nil }
func (m *made) Undo(context.Context) error   { return nil }

// TestImageUsersWithoutSpec: the layers of a node that runs are its own though its spec is damaged; if its journal is damaged too,
// nobody may say that a layer is free.
func TestImageUsersWithoutSpec(t *testing.T) {
	r := Nodes{Layout: layout.New(t.TempDir()), Host: host.New(), Kinds: step.Kinds{"test.made": func() step.Step { return &made{} }}}
	boot, err := r.Host.BootID()
	if err != nil {
		t.Fatal(err)
	}
	dirs := r.Layout.Node("n")
	if err := errors.Join(os.MkdirAll(dirs.Lib, 0o755), os.MkdirAll(dirs.Run, 0o755), os.WriteFile(dirs.Spec(), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	users := func(layer string) []string {
		t.Helper()
		names, err := r.ImageUsers("", []string{layer})
		if err != nil {
			t.Error(err)
		}
		return names
	}
	if got := users("sha256:aa"); got != nil {
		t.Errorf("a node that does not run has layers: %v", got)
	}
	j, err := step.Create(dirs.Journal(), "n", boot)
	if err == nil {
		err = errors.Join(j.Do(t.Context(), &made{On: []string{"/store/layers/sha256/aa", "/elsewhere"}}), j.SetPhase(step.Up))
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"n"}, users("sha256:aa")); diff != "" {
		t.Error(diff)
	}
	if got := users("sha256:bb"); got != nil {
		t.Errorf("a layer that it does not have: %v", got)
	}
	if err := os.WriteFile(dirs.Journal(), []byte("{\n{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := r.ImageUsers("", []string{"sha256:bb"}); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with a damaged journal: %v, %v", names, err)
	}
}
