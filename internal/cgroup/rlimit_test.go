package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

func TestRLimitChanges(t *testing.T) {
	old := &vnode.Node{Name: "wn", RLimits: vnode.RLimits{"nofile": 100, "nproc": 7, "core": 0}}
	next := &vnode.Node{Name: "wn", RLimits: vnode.RLimits{"nofile": 200, "nproc": 7, "memlock": 1}}
	steps, err := RLimitChanges(old, next, host.Facts{SysRes: true}, "berth/wn")
	must(t, err)
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
	if _, err := RLimitChanges(old, next, host.Facts{}, "berth/wn"); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("without CAP_SYS_RESOURCE: %v", err)
	}
	if steps, err := RLimitChanges(old, old, host.Facts{}, "berth/wn"); err != nil || steps != nil {
		t.Errorf("nothing to change: %v, %v", steps, err)
	}
}

// TestKernelRLimit sets a limit of processes that keep forking, and restores the old one where the host allows that.
func TestKernelRLimit(t *testing.T) {
	h := thisHost(t)
	path := newGroup(t, h)
	enter(t, h, path, "ulimit -n 900; while :; do (sleep 0.01; :) & sleep 0.005; done")
	wait(t, "its processes", func() bool {
		pids, err := Procs(h, path)
		return err == nil && len(pids) > 2
	})
	r := &RLimit{Key: "rlimits.nofile", Path: path, In: hierarchies(h), From: "900", Asked: "321", Value: 321}
	must(t, r.Prepare(t.Context()))
	must(t, r.Do(t.Context()))
	must(t, r.Verify(t.Context()))
	has := func(want uint64) {
		t.Helper()
		pids, err := Procs(h, path)
		must(t, err)
		for _, pid := range pids {
			var now unix.Rlimit
			if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now); err == nil && now != (unix.Rlimit{Cur: want, Max: want}) {
				t.Errorf("process %d has %+v, want %d", pid, now, want)
			}
		}
	}
	has(321)
	f, err := host.ReadFacts()
	must(t, err)
	if !f.SysRes {
		t.Log("without CAP_SYS_RESOURCE it cannot be given back")
		return
	}
	must(t, r.Undo(t.Context()))
	has(900)
}
