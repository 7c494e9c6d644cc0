package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// TestV2Drifted overwrites each limit of a v2 group by hand: Drifted has a step for what is not so any more, and for nothing else.
func TestV2Drifted(t *testing.T) {
	h, dir := grouptest.Drawn(t)
	n := fullNode()
	n.Memory.High, n.Memory.Low, n.IO = 3<<30, 1<<30, nil // a plain file keeps one line for all disks
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "../memory.low"), []byte("0"), 0o644))
	limits, err := Limits(n, h, "berth/wn", testDisks())
	testkit.Must(t, err)
	for _, l := range limits {
		testkit.Must(t, l.Do(t.Context()))
	}
	steps, err := Drifted(limits)
	testkit.Must(t, err)
	if len(steps) > 0 {
		t.Errorf("nobody wrote anything: %v", steps)
	}
	for file, by := range map[string]struct{ text, want string }{
		"cpu.max":         {"max 100000", "cpu.max max ⇒ 1.5: cpu.max=150000 100000"},
		"cpu.weight":      {"100", "cpu.weight 100 ⇒ 50: cpu.weight=50"},
		"memory.max":      {"max", "memory.max max ⇒ 4GiB: memory.max=4294967296"},
		"memory.high":     {"max", "memory.high max ⇒ 3GiB: memory.high=3221225472"},
		"memory.swap.max": {"0", "memory.swap 0 ⇒ 1GiB: memory.swap.max=1073741824"},
		"pids.max":        {"max", "pids max ⇒ 4096: pids.max=4096"},
		"node/pids.max":   {"7", "pids 7 ⇒ 4096: pids.max=4096"}, // where programs in the node look
		"memory.low":      {"0", "memory.low max ⇒ 1GiB: memory.low=1073741824"},
		"../memory.low":   {"4096", "memory.low 4KiB ⇒ 1GiB: memory.low=1073741824"}, // the group above, without which the kernel protects nothing
	} {
		was := grouptest.Text(t, filepath.Join(dir, file))
		testkit.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(by.text), 0o644))
		steps, err := Drifted(limits)
		testkit.Must(t, err)
		var got []string
		for _, s := range steps {
			got = append(got, s.String())
			testkit.Must(t, step.Do(t.Context(), s))
		}
		if diff := cmp.Diff(by.want, strings.Join(got, "\n")); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
		if got := grouptest.Text(t, filepath.Join(dir, file)); got != was {
			t.Errorf("%s is %s again, was %s", file, got, was)
		}
	}
}

// TestKernelIdled: where another program has made a node's group idle, its weight is written again, which the kernel takes of no idle one.
func TestKernelIdled(t *testing.T) {
	h := grouptest.Host(t)
	if h.Has("cpu") == "" {
		t.Skip("no cgroup hierarchy with cpu")
	}
	limits, err := Limits(&vnode.Node{CPU: vnode.CPU{Weight: 50}}, h, newGroup(t, h), nil)
	testkit.Must(t, err)
	do(t, limits[0])
	file := limits[0].Writes[0].File
	was := grouptest.Text(t, file)
	idle := filepath.Join(filepath.Dir(file), "cpu.idle")
	if err := group.WriteFile(idle, "1"); group.Gone(err) {
		t.Skip("this kernel has no cpu.idle")
	} else if err != nil {
		t.Fatal(err)
	}
	steps, err := Drifted(limits)
	testkit.Must(t, err)
	if len(steps) != 1 {
		t.Fatalf("the group is idle, and its weight %s, was %s: %v", grouptest.Text(t, file), was, steps)
	}
	testkit.Must(t, step.Do(t.Context(), steps[0]))
	if got := grouptest.Text(t, file) + ", idle " + grouptest.Text(t, idle); got != was+", idle 0" {
		t.Errorf("the weight is %s again, was %s", got, was)
	}
}
