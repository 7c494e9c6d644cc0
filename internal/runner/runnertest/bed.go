package runnertest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/runner"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// bed is one node of a test, with its groups and its journal.
type bed struct {
	suite       Suite
	spec        runner.Spec
	steps       runner.Steps
	session     runner.Session
	journal     *step.Journal
	journalPath string
	out         *os.File // what the command writes
	lock        string
	before      []string // files of the node's folder before the first step
}

var beds atomic.Int32

// bed plans a node that runs a script. Whatever is left of it is removed at the end of the test.
func (s Suite) bed(t *testing.T, script string) *bed {
	t.Helper()
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	dir, aside := tempDir(t), t.TempDir()
	b := &bed{suite: s, spec: s.Spec(t, dir, script), journalPath: filepath.Join(aside, "journal"), lock: filepath.Join(aside, "lock")}
	b.spec.Groups = runner.Groups{Path: fmt.Sprintf("berth-test-%d-%d", os.Getpid(), beds.Add(1)), Host: cg}
	b.spec.Dir, b.spec.State = dir, filepath.Join(aside, "state")
	b.spec.PIDFile, b.spec.Log = filepath.Join(dir, "pid"), filepath.Join(dir, "log")
	b.plan(t)
	if b.out, err = os.Create(filepath.Join(aside, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.session.Files = runner.Files{Stdout: b.out, Stderr: b.out}
	b.before = b.files(t)
	if err := group.Make(t.Context(), cg, b.spec.Groups.Path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.out.Close()
		if _, err := os.Stat(b.journalPath); err == nil {
			b.reopen(t)
			if err := b.journal.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if err := group.Remove(context.Background(), cg, b.spec.Groups.Path); err != nil {
			t.Error(err)
		}
	})
	return b
}

// tempDir returns a folder that a node with ids of its own can reach.
func tempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// plan makes the steps of the spec.
func (b *bed) plan(t *testing.T) {
	t.Helper()
	var err error
	if b.steps, err = b.suite.Runner.Steps(b.spec); err != nil {
		t.Fatal(err)
	}
}

// try does steps, as the start of a node does.
func (b *bed) try(t *testing.T, steps []step.Step) (err error) {
	t.Helper()
	if b.journal == nil {
		if b.journal, err = step.Create(b.journalPath, b.spec.Node, "boot"); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range steps {
		b.session.Attach(s)
		if err := b.journal.Do(t.Context(), s); err != nil {
			return err
		}
	}
	return nil
}

func (b *bed) do(t *testing.T, steps []step.Step) {
	t.Helper()
	if err := b.try(t, steps); err != nil {
		t.Fatalf("%v\n%s", err, b.said(t))
	}
}

func (b *bed) up(t *testing.T) {
	t.Helper()
	b.do(t, slices.Concat(b.steps.Create, b.steps.Start))
}

// reopen reads the journal, as another process does.
func (b *bed) reopen(t *testing.T) {
	t.Helper()
	var err error
	if b.journal, err = step.Open(b.journalPath, b.suite.Family.Kinds()); err != nil {
		t.Fatal(err)
	}
}

// undo undoes all steps.
func (b *bed) undo(t *testing.T) {
	t.Helper()
	if err := b.journal.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (b *bed) holder(t *testing.T) runner.Holder {
	t.Helper()
	h := runner.FirstProcess(b.journal.Steps())
	if h == nil {
		t.Fatal("no step holds the first process")
	}
	return h
}

// ended waits for the end of the first process.
func (b *bed) ended(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "the first process has ended", func() bool { return !b.holder(t).First().Alive() })
}

func (b *bed) said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(b.out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// await waits until the command has said something, and returns all that it said.
func (b *bed) await(t *testing.T, what string) string {
	t.Helper()
	testkit.Eventually(t, "the command says "+what, func() bool { return strings.Contains(b.said(t), what) })
	return b.said(t)
}

// groups returns the folders of the groups in which processes of the node must be.
func (b *bed) groups() (dirs []string) {
	e := b.spec.Groups.Entry()
	for _, g := range e.V1 {
		dirs = append(dirs, filepath.Join(g.Mount, g.Path))
	}
	if e.V2 != "" {
		dirs = append(dirs, e.V2)
	}
	return dirs
}

// files lists the files of the node's folder and those that the runner keeps of nodes.
func (b *bed) files(t *testing.T) (all []string) {
	t.Helper()
	for _, top := range []string{b.spec.Dir, b.spec.State} {
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && path != top {
				all = append(all, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return all
}

// nothingLeft checks that no process of the node is left, and no file beyond those that were there before.
func (b *bed) nothingLeft(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "all processes of the node have ended", func() bool { return b.processes() == "" })
	if now := b.files(t); !slices.Equal(now, b.before) {
		t.Errorf("files left: %q, before: %q", now, b.before)
	}
}

// processes names those that are in the node's groups, or see its folder in their mounts or their command line.
func (b *bed) processes() (all string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		var pid int
		if _, err := fmt.Sscan(filepath.Base(d), &pid); err != nil {
			continue
		}
		if st, err := proc.Read(pid); err != nil || st.Ended() {
			continue
		}
		for file, mark := range map[string]string{"cgroup": "/" + b.spec.Groups.Path, "mountinfo": b.spec.Dir, "cmdline": b.spec.Dir} {
			if text, err := os.ReadFile(filepath.Join(d, file)); err == nil && strings.Contains(string(text), mark) {
				all += fmt.Sprintf("%d (%s) ", pid, file)
			}
		}
	}
	return all
}
