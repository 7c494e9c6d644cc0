package rlimit

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func TestChanges(t *testing.T) {
	old := &vnode.Node{Name: "wn", RLimits: vnode.RLimits{"nofile": 100, "nproc": 7, "core": 0}}
	next := &vnode.Node{Name: "wn", RLimits: vnode.RLimits{"nofile": 200, "nproc": 7, "memlock": 1}}
	steps, err := Changes(old, next, host.Facts{SysRes: true}, "berth/wn")
	testkit.Must(t, err)
	var got []string
	for _, s := range steps {
		got = append(got, s.String())
	}
	want := []string{
		"rlimits.memlock max ⇒ 1: setrlimit of each process",
		"rlimits.nofile 100 ⇒ 200: setrlimit of each process",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := Changes(old, next, host.Facts{}, "berth/wn"); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("without CAP_SYS_RESOURCE: %v", err)
	}
	if steps, err := Changes(old, old, host.Facts{}, "berth/wn"); err != nil || steps != nil {
		t.Errorf("nothing to change: %v, %v", steps, err)
	}
}

// TestResources checks the names of resources against their numbers in the kernel's headers, and that all names of a spec are known.
func TestResources(t *testing.T) {
	for name, number := range map[string]int{"cpu": unix.RLIMIT_CPU, "core": unix.RLIMIT_CORE, "nofile": unix.RLIMIT_NOFILE, "memlock": unix.RLIMIT_MEMLOCK, "rttime": unix.RLIMIT_RTTIME} {
		if r, err := newChange(name, 1); err != nil || r.Resource != number {
			t.Errorf("%s: %+v, %v; want number %d", name, r, err, number)
		}
	}
	for _, name := range vnode.RLimitNames() {
		if _, err := newChange(name, 1); err != nil {
			t.Error(err)
		}
	}
	if _, err := newChange("files", 1); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("an unknown resource: %v", err)
	}
}

// TestKernelRLimit sets a limit of processes that keep forking, and restores the old one where the host allows that.
func TestKernelRLimit(t *testing.T) {
	h := grouptest.Host(t)
	path := grouptest.New(t, h, group.Kinds(), group.Steps)
	grouptest.Enter(t, h, path, "ulimit -n 900; while :; do (sleep 0.01; :) & sleep 0.005; done")
	testkit.Eventually(t, "its processes", func() bool {
		pids, err := group.Procs(h, path)
		return err == nil && len(pids) > 2
	})
	r, err := newChange("nofile", 321)
	testkit.Must(t, err)
	r.Path, r.In, r.From = path, group.Hierarchies(h), "900"
	testkit.Must(t, r.Prepare(t.Context()))
	testkit.Must(t, r.Do(t.Context()))
	testkit.Must(t, r.Verify(t.Context()))
	has := func(want uint64) {
		t.Helper()
		pids, err := group.Procs(h, path)
		testkit.Must(t, err)
		for _, pid := range pids {
			var now unix.Rlimit
			if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now); err == nil && now != (unix.Rlimit{Cur: want, Max: want}) {
				t.Errorf("process %d has %+v, want %d", pid, now, want)
			}
		}
	}
	has(321)
	if got := r.Proved(); len(got) != 1 || got[0].Asked != "321" || got[0].ReadBack != "321" || !got[0].Holds {
		t.Errorf("proved: %+v", got)
	}
	f, err := host.ReadFacts()
	testkit.Must(t, err)
	back := uint64(900)
	if !f.SysRes { // without CAP_SYS_RESOURCE a limit cannot be raised: that the processes had a lower one is made up
		back = 300
		for i := range r.Back {
			r.Back[i].Soft, r.Back[i].Hard = back, back
		}
	}
	testkit.Must(t, r.Undo(t.Context()))
	testkit.Eventually(t, "the old limit of all", func() bool { // a process forked before its parent's turn has the new one
		pids, err := group.Procs(h, path)
		testkit.Must(t, err)
		return !slices.ContainsFunc(pids, func(pid int) bool {
			now, err := r.read(pid)
			return err == nil && now != unix.Rlimit{Cur: back, Max: back}
		})
	})
}

func TestJournal(t *testing.T) {
	grouptest.Journal(t, Kinds(), &Change{Path: "berth/wn", Resource: 7, Value: 5, Back: []before{{PID: 7}}})
}
