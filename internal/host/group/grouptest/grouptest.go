// Package grouptest gives tests cgroups on this host's kernel, imitated cgroup trees of plain files, and hosts to plan for.
package grouptest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// Must fails the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Host returns the hierarchies of this host. The test is skipped without root or without any.
func Host(t *testing.T) host.Cgroups {
	t.Helper()
	testkit.NeedsRoot(t)
	h, err := host.ReadCgroups("/proc")
	Must(t, err)
	if len(h.V1) == 0 && h.V2 == "" {
		t.Skip("no cgroup hierarchy is mounted")
	}
	if h.V2 != "" { // controllers that the steps enable there are disabled again, unless another test needs them by then
		root := filepath.Join(h.V2, "cgroup.subtree_control")
		t.Cleanup(func() {
			for _, c := range h.V2Controllers {
				if !slices.Contains(h.V2Enabled, c) {
					_ = os.WriteFile(root, []byte("-"+c), 0)
				}
			}
		})
	}
	return h
}

// Dirs returns the folders of the groups at a path that exist, one for each hierarchy.
func Dirs(h host.Cgroups, path string) []string {
	var all []string
	for _, mount := range h.V1 {
		all = append(all, filepath.Join(mount, path))
	}
	if h.V2 != "" {
		all = append(all, filepath.Join(h.V2, path))
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
}

// Parent returns a path for groups of this test, and checks at the end that no hierarchy still has it.
func Parent(t *testing.T, h host.Cgroups) string {
	t.Helper()
	parent := fmt.Sprintf("berth-test-%d-%s", os.Getpid(), strings.ToLower(strings.NewReplacer("/", "-", " ", "-").Replace(t.Name())))
	t.Cleanup(func() {
		for _, dir := range Dirs(h, parent) {
			t.Errorf("left behind: %s", dir)
		}
	})
	return parent
}

// New makes a group for the test by these steps, which are group.Steps, and returns its path.
func New(t *testing.T, h host.Cgroups, kinds step.Kinds, steps func(host.Cgroups, string) ([]step.Step, error)) string {
	t.Helper()
	path := Parent(t, h) + "/wn"
	all, err := steps(h, path)
	Must(t, err)
	for _, s := range all {
		Do(t, kinds, s)
	}
	return path
}

// Do runs a step as package node does, through its journal record, and undoes it at the end.
func Do(t *testing.T, kinds step.Kinds, s step.Step) {
	t.Helper()
	ctx := t.Context()
	if p, ok := s.(step.Preparer); ok {
		Must(t, p.Prepare(ctx))
	}
	again := s
	t.Cleanup(func() {
		for range 2 { // the second time there is nothing left to undo
			if err := again.Undo(context.Background()); err != nil {
				t.Errorf("undo %s %s: %v", again.Kind(), again, err)
			}
		}
	})
	Must(t, s.Do(ctx))
	Must(t, s.Verify(ctx))
	again = decoded(t, kinds, s)
}

// Journal reads each step back from its record, and checks that these are steps of all kinds.
func Journal(t *testing.T, kinds step.Kinds, steps ...step.Step) {
	t.Helper()
	seen := map[string]bool{}
	for _, s := range steps {
		if diff := cmp.Diff(s, decoded(t, kinds, s)); diff != "" {
			t.Errorf("%s: %s", s.Kind(), diff)
		}
		seen[s.Kind()] = true
	}
	if len(seen) != len(kinds) {
		t.Errorf("kinds seen: %v", seen)
	}
}

func decoded(t *testing.T, kinds step.Kinds, s step.Step) step.Step {
	t.Helper()
	record, err := json.Marshal(s)
	Must(t, err)
	again, err := kinds.Decode(s.Kind(), record)
	Must(t, err)
	return again
}

// Enter starts a command inside the group, in all hierarchies.
func Enter(t *testing.T, h host.Cgroups, path, script string) *exec.Cmd {
	t.Helper()
	var join strings.Builder
	for _, dir := range Dirs(h, path) {
		join.WriteString("echo $$ > " + dir + "/cgroup.procs && ")
	}
	cmd := exec.Command("/bin/sh", "-c", join.String()+"echo in && { "+script+"\n}")
	out, err := cmd.StdoutPipe()
	Must(t, err)
	Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	buf := make([]byte, 3)
	if _, err := out.Read(buf); err != nil || string(buf) != "in\n" {
		t.Fatalf("enter %s: %q, %v", path, buf, err)
	}
	return cmd
}

// Contents reads control files of a group, in every hierarchy that has them.
func Contents(t *testing.T, h host.Cgroups, path string, names ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range Dirs(h, path) {
		for _, name := range names {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				all[filepath.Join(dir, name)] = strings.TrimSpace(string(text))
			}
		}
	}
	return all
}

// Text reads a control file that must exist.
func Text(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	Must(t, err)
	return strings.TrimSpace(string(b))
}
