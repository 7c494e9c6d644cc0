package cgroup

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
	"berth/internal/refuse"
	"berth/internal/vnode"
)

func TestKernelGroup(t *testing.T) {
	h := thisHost(t)
	path := newGroup(t, h)
	for _, p := range places(h, path) {
		if p.has("cpuset") {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if text, err := readFile(filepath.Join(p.dir, file)); err != nil || text == "" {
					t.Errorf("%s/%s: %q, %v", p.dir, file, text, err)
				}
			}
		}
	}
	if got, want := len(places(h, path)), len(hierarchies(h)); got != want {
		t.Errorf("the group is in %d of %d hierarchies", got, want)
	}
	again := &Group{Path: path, In: hierarchies(h)}
	if err := again.Prepare(t.Context()); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a group that is there: %v", err)
	}
}

// TestKernelForkBomb kills a group that forks as fast as it can, and removes it.
func TestKernelForkBomb(t *testing.T) {
	h := thisHost(t)
	if h.Has("pids") == "" {
		t.Skip("no pids controller: a fork bomb would not stay inside")
	}
	path := newGroup(t, h)
	limits, err := Limits(&vnode.Node{PIDs: 200}, h, path, nil)
	must(t, err)
	do(t, limits[0])
	enter(t, h, path, "f() { while :; do f & done; }; f 2>/dev/null")
	wait(t, "the bomb to fill its group", func() bool {
		pids := Stats(h, path).PIDs
		return pids != nil && *pids > 150
	})
	start := time.Now()
	must(t, Kill(t.Context(), h, path))
	t.Log("killed in", time.Since(start))
	pids, err := Procs(h, path)
	must(t, err)
	if len(pids) > 0 {
		t.Errorf("left: %v", pids)
	}
}

// TestKernelUndoKills undoes a group in which processes still run, some of them in groups inside it.
func TestKernelUndoKills(t *testing.T) {
	h := thisHost(t)
	parent := testParent() + "-undo"
	nothingLeft(t, h, parent)
	group := &Group{Path: parent + "/wn", In: hierarchies(h)}
	do(t, group)
	inner := group.Path + "/inner"
	for _, p := range places(h, group.Path) {
		must(t, unix.Mkdir(filepath.Join(p.dir, "inner"), 0o755))
		if p.has("cpuset") {
			must(t, fromParent(filepath.Join(p.dir, "inner")))
		}
	}
	cmd := enter(t, h, inner, "sleep 1000 & sleep 1000 & wait")
	pids, err := Procs(h, group.Path)
	must(t, err)
	if !slices.Contains(pids, cmd.Process.Pid) {
		t.Errorf("Procs: %v without %d", pids, cmd.Process.Pid)
	}
	must(t, group.Undo(t.Context()))
	if all := places(h, parent); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
}

// TestKernelPartialUndo undoes a Do that was killed in the middle, before its inodes were journalled.
func TestKernelPartialUndo(t *testing.T) {
	h := thisHost(t)
	parent := testParent() + "-part"
	nothingLeft(t, h, parent)
	for made := range len(hierarchies(h)) + 1 {
		begun := &Group{Path: parent + "/wn", In: hierarchies(h)}
		must(t, begun.Prepare(t.Context()))
		for _, hh := range begun.In[:made] { // of a copy, so the inodes are lost
			if err := hh.make(begun.Path); err != nil {
				t.Error(err)
			}
		}
		must(t, begun.Undo(t.Context()))
		if all := places(h, parent); len(all) > 0 {
			t.Fatalf("after %d: left %v", made, all)
		}
	}
}

// TestKernelForeignGroup leaves alone a group with the right name and another inode.
func TestKernelForeignGroup(t *testing.T) {
	h := thisHost(t)
	parent := testParent() + "-foreign"
	nothingLeft(t, h, parent)
	old := &Group{Path: parent + "/wn", In: hierarchies(h)}
	do(t, old)
	for _, p := range places(h, old.Path) { // somebody removes the group and makes another
		must(t, unix.Rmdir(p.dir))
	}
	other := &Group{Path: old.Path, In: hierarchies(h)}
	do(t, other)
	must(t, old.Undo(t.Context()))
	must(t, other.Verify(t.Context()))
	if err := old.Verify(t.Context()); err == nil {
		t.Error("another's group passes for ours")
	}
}

// TestKernelParentRace makes and removes groups of several nodes at once, so their parent appears and vanishes meanwhile.
func TestKernelParentRace(t *testing.T) {
	h := thisHost(t)
	parent := testParent() + "-race"
	nothingLeft(t, h, parent)
	const nodes, rounds = 4, 15
	errs := make(chan error, nodes)
	for i := range nodes {
		go func() {
			var failed error
			for range rounds {
				g := &Group{Path: fmt.Sprintf("%s/wn-%d", parent, i), In: hierarchies(h)}
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

func TestKernelStats(t *testing.T) {
	h := thisHost(t)
	path := newGroup(t, h)
	enter(t, h, path, "while :; do :; done")
	wait(t, "CPU time to be counted", func() bool {
		u := Stats(h, path)
		return u.CPU == nil || *u.CPU > 10*time.Millisecond
	})
	u := Stats(h, path)
	if u.PIDs != nil && *u.PIDs != 1 {
		t.Errorf("%d processes", *u.PIDs)
	}
	if u.Memory != nil && *u.Memory <= 0 {
		t.Errorf("%d bytes", *u.Memory)
	}
	if (u.OOMKills != nil) != (u.Memory != nil) {
		t.Errorf("kills for lack of memory: %v", u.OOMKills)
	}
	if gone := Stats(h, path+"-none"); gone != (Usage{}) {
		t.Errorf("a group that is not there: %+v", gone)
	}
}

// TestKernelOOM counts a process that was killed for lack of memory.
func TestKernelOOM(t *testing.T) {
	h := thisHost(t)
	if h.Has("memory") == "" {
		t.Skip("no memory controller")
	}
	path := newGroup(t, h)
	limits, err := Limits(&vnode.Node{Memory: vnode.Memory{Max: 16 << 20}}, h, path, nil)
	must(t, err)
	do(t, limits[0])
	enter(t, h, path, "a=xxxxxxxxxxxxxxxx; while :; do a=$a$a; done")
	wait(t, "the kernel to kill", func() bool {
		kills := Stats(h, path).OOMKills
		return kills != nil && *kills > 0
	})
	if hits := Stats(h, path).AtLimit; hits == nil || *hits == 0 {
		t.Errorf("times at the limit: %v", hits)
	}
}

func TestKernelDelegate(t *testing.T) {
	h := thisHost(t)
	path := newGroup(t, h)
	d := DelegateStep(h, path, 123456, 123457)
	if d == nil {
		t.Skip("no v2 tree")
	}
	do(t, d)
}

func wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain for ", what)
		}
	}
}

// BenchmarkGroup makes and removes a group. Its parent stays, as on a host with other nodes.
func BenchmarkGroup(b *testing.B) {
	h, err := host.ReadCgroups("/proc")
	if err != nil || os.Geteuid() != 0 {
		b.Skip("needs root: ", err)
	}
	parent := testParent() + "-bench"
	stay := &Group{Path: parent + "/stay", In: hierarchies(h)}
	if err := stay.Do(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = stay.Undo(context.Background()) })
	var made, removed time.Duration
	for b.Loop() {
		g := &Group{Path: parent + "/wn", In: hierarchies(h)}
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
