package cgroup

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"berth/internal/vnode"
)

// TestKernelForeign gives a standing to a group that is not Berth's own, and restores the old values.
func TestKernelForeign(t *testing.T) {
	h := thisHost(t)
	path := newGroup(t, h)
	f := ForeignStep(vnode.Storage.Standing(), h, path, 0)
	if f == nil {
		t.Skip("no cgroup controller here that shares CPU time or disks")
	}
	before := contents(t, h, path)
	must(t, f.Prepare(t.Context()))
	must(t, f.Do(t.Context()))
	must(t, f.Verify(t.Context()))
	for _, s := range f.Show() {
		if !s.Holds {
			t.Errorf("%+v", s)
		}
	}
	must(t, f.Undo(t.Context()))
	for name, text := range contents(t, h, path) {
		if before[name] != text {
			t.Errorf("%s is %q, it was %q", name, text, before[name])
		}
	}
	f.Values[0].Inode++ // another group at the same path
	f.Values[0].Back = "2"
	must(t, f.Undo(t.Context()))
	if got, _ := f.Values[0].Write.effect(); got == "2" {
		t.Error("a group that is another's was changed")
	}
}

// TestKernelAdopt moves a process and its child to a group of their own, and back. A third process that the first one
// starts there moves back with them.
func TestKernelAdopt(t *testing.T) {
	h := thisHost(t)
	cmd := exec.Command("sh", "-c", "sleep 1000 & read x; sleep 1001 & wait")
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	family := func(n int) []int {
		var all []int
		wait(t, "the processes to start", func() bool {
			all = familyOf(cmd.Process.Pid)
			return len(all) == n
		})
		return all
	}
	first := family(2)
	t.Cleanup(func() {
		for _, pid := range familyOf(cmd.Process.Pid)[1:] {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the error only says that it was killed
	})
	before, err := GroupsOf(h, first[1])
	must(t, err)
	group := testParent() + "-adopt"
	steps, err := AdoptSteps(vnode.Storage.Standing(), h, group, first[0], 0, 0)
	must(t, err)
	for _, s := range steps {
		do(t, s)
	}
	_, err = in.Write([]byte("\n"))
	must(t, err)
	for _, pid := range family(3) {
		groups, err := GroupsOf(h, pid)
		must(t, err)
		for _, g := range groups {
			if g != group {
				t.Errorf("process %d is in %q", pid, g)
			}
		}
	}
	if own, ok, err := OwnGroup(h, first[0]); own != group || !ok || err != nil {
		t.Errorf("own group %q %v %v", own, ok, err)
	}
	for _, s := range steps {
		if a, ok := s.(*Adopt); ok {
			must(t, a.Undo(context.Background()))
		}
	}
	for _, pid := range family(3) {
		groups, err := GroupsOf(h, pid)
		must(t, err)
		if groups[0] != before[0] {
			t.Errorf("process %d is in %q, it came from %q", pid, groups[0], before[0])
		}
	}
	for _, hh := range hierarchies(h) {
		if _, err := os.Stat(filepath.Join(hh.Mount, group)); err == nil {
			t.Errorf("left: %s in %s", group, hh.Mount)
		}
	}
}
