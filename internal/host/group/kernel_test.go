package group

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group/grouptest"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func TestKernelGroup(t *testing.T) {
	h := grouptest.Host(t)
	path := grouptest.New(t, h, Kinds(), Steps)
	for _, p := range places(h, path) {
		if p.Has("cpuset") {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if text, err := ReadFile(filepath.Join(p.dir, file)); err != nil || text == "" {
					t.Errorf("%s/%s: %q, %v", p.dir, file, text, err)
				}
			}
		}
	}
	if got, want := len(places(h, path)), len(Hierarchies(h)); got != want {
		t.Errorf("the group is in %d of %d hierarchies", got, want)
	}
	again := &Group{Path: path, In: Hierarchies(h)}
	if err := again.Prepare(t.Context()); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a group that is there: %v", err)
	}
}

// TestKernelUndoKills undoes a group in which processes still run, some of them in groups inside it.
func TestKernelUndoKills(t *testing.T) {
	h := grouptest.Host(t)
	parent := grouptest.Parent(t, h)
	group := &Group{Path: parent + "/wn", In: Hierarchies(h)}
	grouptest.Do(t, Kinds(), group)
	inner := group.Path + "/inner"
	for _, p := range places(h, group.Path) {
		testkit.Must(t, unix.Mkdir(filepath.Join(p.dir, "inner"), 0o755))
		if p.Has("cpuset") {
			testkit.Must(t, fromParent(filepath.Join(p.dir, "inner")))
		}
	}
	cmd := grouptest.Enter(t, h, inner, "sleep 1000 & sleep 1000 & wait")
	pids, err := Procs(h, group.Path)
	testkit.Must(t, err)
	if !slices.Contains(pids, cmd.Process.Pid) {
		t.Errorf("Procs: %v without %d", pids, cmd.Process.Pid)
	}
	testkit.Must(t, group.Undo(t.Context()))
	if all := places(h, parent); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
}

// TestKernelPartialUndo undoes a Do that was killed in the middle, before its inodes were journalled.
func TestKernelPartialUndo(t *testing.T) {
	h := grouptest.Host(t)
	parent := grouptest.Parent(t, h)
	for made := range len(Hierarchies(h)) + 1 {
		begun := &Group{Path: parent + "/wn", In: Hierarchies(h)}
		testkit.Must(t, begun.Prepare(t.Context()))
		for _, hh := range begun.In[:made] { // of a copy, so the inodes are lost
			if err := hh.Make(begun.Path); err != nil {
				t.Error(err)
			}
		}
		testkit.Must(t, begun.Undo(t.Context()))
		if all := places(h, parent); len(all) > 0 {
			t.Fatalf("after %d: left %v", made, all)
		}
	}
}

// TestKernelForeignGroup leaves alone a group with the right name and another inode.
func TestKernelForeignGroup(t *testing.T) {
	h := grouptest.Host(t)
	parent := grouptest.Parent(t, h)
	old := &Group{Path: parent + "/wn", In: Hierarchies(h)}
	grouptest.Do(t, Kinds(), old)
	for _, p := range places(h, old.Path) { // somebody removes the group and makes another
		testkit.Must(t, unix.Rmdir(p.dir))
	}
	other := &Group{Path: old.Path, In: Hierarchies(h)}
	grouptest.Do(t, Kinds(), other)
	testkit.Must(t, old.Undo(t.Context()))
	testkit.Must(t, other.Verify(t.Context()))
	if err := old.Verify(t.Context()); err == nil {
		t.Error("another's group passes for ours")
	}
}

// TestKernelParentRace makes and removes groups of several nodes at once, so their parent appears and vanishes meanwhile.
func TestKernelParentRace(t *testing.T) {
	h := grouptest.Host(t)
	parent := grouptest.Parent(t, h)
	const nodes, rounds = 4, 15
	errs := make(chan error, nodes)
	for i := range nodes {
		go func() {
			var failed error
			for range rounds {
				g := &Group{Path: fmt.Sprintf("%s/wn-%d", parent, i), In: Hierarchies(h)}
				failed = errors.Join(failed, g.Do(context.Background()), g.Verify(context.Background()), g.Undo(context.Background()))
			}
			errs <- failed
		}()
	}
	for range nodes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestKernelDelegate(t *testing.T) {
	h := grouptest.Host(t)
	path := grouptest.New(t, h, Kinds(), Steps)
	d := DelegateStep(h, path, 123456, 123457)
	if d == nil {
		t.Skip("no v2 tree")
	}
	grouptest.Do(t, Kinds(), d)
}

// BenchmarkGroup makes and removes a group. Its parent stays, as on a host with other nodes.
func BenchmarkGroup(b *testing.B) {
	testkit.NeedsRoot(b)
	h, err := host.ReadCgroups("/proc")
	testkit.Must(b, err)
	parent := fmt.Sprintf("berth-test-%d-bench", os.Getpid())
	stay := &Group{Path: parent + "/stay", In: Hierarchies(h)}
	if err := stay.Do(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = stay.Undo(context.Background()) })
	var made, removed time.Duration
	for b.Loop() {
		g := &Group{Path: parent + "/wn", In: Hierarchies(h)}
		start := time.Now()
		if err := errors.Join(g.Prepare(b.Context()), g.Do(b.Context()), g.Verify(b.Context())); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		if err := g.Undo(b.Context()); err != nil {
			b.Fatal(err)
		}
		made, removed = made+middle.Sub(start), removed+time.Since(middle)
	}
	b.ReportMetric(float64(made.Microseconds())/float64(b.N), "µs-make/op")
	b.ReportMetric(float64(removed.Microseconds())/float64(b.N), "µs-remove/op")
}

// TestKernelNameOfAFile undoes groups whose names are files that the kernel has in the group above: none of them can be made, and
// nothing is stuck afterwards.
func TestKernelNameOfAFile(t *testing.T) {
	h := grouptest.Host(t)
	for _, name := range []string{"tasks", "cgroup.procs"} {
		group := &Group{Path: grouptest.Parent(t, h) + "/" + name, In: Hierarchies(h)}
		testkit.Must(t, group.Prepare(t.Context())) // the group above is not there, so neither is the file
		if err := group.Do(t.Context()); err == nil && name == "cgroup.procs" {
			t.Errorf("%s: a group was made", name)
		}
		testkit.Must(t, group.Undo(t.Context()))
		testkit.Must(t, group.Undo(t.Context()))
	}
}

// TestKernelLeave leaves groups of the caller in every hierarchy, in a process of its own: by itself, or moved by another.
func TestKernelLeave(t *testing.T) {
	const child = "BERTH_TEST_GROUP_LEAVE"
	h := grouptest.Host(t)
	if path := os.Getenv(child); path != "" {
		for _, hh := range Hierarchies(h) {
			testkit.Must(t, WriteFile(filepath.Join(hh.Mount, path, "cgroup.procs"), "0"))
		}
		if os.Getenv(child+"_BY") == "" {
			testkit.Must(t, Leave(h))
		} else {
			Free(h, os.Getpid())
		}
		for _, hh := range Hierarchies(h) {
			if at, err := hh.GroupOf(os.Getpid()); err != nil || at != "" {
				t.Errorf("%s: this process is in %q, %v", hh.Title(), at, err)
			}
		}
		return
	}
	path := grouptest.New(t, h, Kinds(), Steps)
	for _, by := range []string{"", "another"} {
		if out, err := testkit.Again(t, "TestKernelLeave", child+"="+Container(h, path), child+"_BY="+by).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}
