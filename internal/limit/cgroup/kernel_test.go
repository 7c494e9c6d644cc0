package cgroup

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/counters"
	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/loop"
	"berth/test/testkit"
)

// files are the control files that the tests change.
func files() []string {
	return []string{
		"cpu.shares", "cpu.cfs_quota_us", "cpuset.cpus", "memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes",
		"memory.memsw.limit_in_bytes", "pids.max", "cpu.max", "cpu.weight", "memory.max", "memory.swap.max",
	}
}

// newGroup makes a group on the kernel of this host.
func newGroup(t *testing.T, h host.Cgroups) (path string) {
	t.Helper()
	return grouptest.New(t, h, group.Kinds(), group.Steps)
}

func do(t *testing.T, s step.Step) { t.Helper(); grouptest.Do(t, Kinds(), s) }

func TestKernelLimits(t *testing.T) {
	h := grouptest.Host(t)
	path := newGroup(t, h)
	n := &vnode.Node{CPU: vnode.CPU{Weight: 1, Max: 1234, Set: "0"}, Memory: vnode.Memory{Max: 100_000_001}, PIDs: 77}
	want := map[string]string{"cpu.weight": "1", "cpu.max": "1.234", "cpu.set": "0", "memory.max": "97656KiB", "pids": "77"}
	if h.Has("cpu") == "v1" {
		want["cpu.weight"] = "10 shares"
	}
	if h.V1Swap {
		n.Memory.Swap = ptr(vnode.Bytes(5000))
		want["memory.swap"] = "97660KiB with memory" // the sum is rounded down
	}
	if h.Has("hugetlb") != "" && slices.Contains(h.HugePages, 2<<20) {
		n.HugePages = vnode.HugePages{2 << 20: 5_000_000}
		want["hugepages.2MiB"] = "4MiB"
	}
	dropUnmounted(t, n, h)
	limits, err := Limits(n, h, path, nil)
	testkit.Must(t, err)
	for _, l := range limits {
		do(t, l)
	}
	shown, err := Read(limits)
	testkit.Must(t, err)
	for i, s := range shown {
		if !s.Holds || s.ReadBack != want[s.Key] || limits[i].ReadBack != s.ReadBack {
			t.Errorf("%+v: want %q, verified %q", s, want[s.Key], limits[i].ReadBack)
		}
	}

	// another writer changes one limit: Read shows it, and Verify fails
	pids := find(limits, "pids")
	if pids == nil {
		return
	}
	testkit.Must(t, group.WriteFile(pids.Writes[0].File, "78"))
	if err := pids.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), "the kernel says 78") {
		t.Errorf("verify after a foreign write: %v", err)
	}
	if shown, err = Read([]*Limit{pids}); err != nil || shown[0].Holds || shown[0].ReadBack != "78" {
		t.Errorf("read after a foreign write: %+v, %v", shown, err)
	}
}

// dropUnmounted removes from a node the limits whose controllers this host lacks.
func dropUnmounted(t *testing.T, n *vnode.Node, h host.Cgroups) {
	t.Helper()
	for controller, drop := range map[string]func(){
		"cpu":    func() { n.CPU.Weight, n.CPU.Max = 0, 0 },
		"cpuset": func() { n.CPU.Set = "" },
		"memory": func() { n.Memory = vnode.Memory{} },
		"pids":   func() { n.PIDs = 0 },
	} {
		if h.Has(controller) == "" {
			t.Logf("no %s controller here", controller)
			drop()
		}
	}
}

func TestKernelChanges(t *testing.T) {
	h := grouptest.Host(t)
	for _, c := range []string{"cpu", "cpuset", "memory", "pids"} {
		if h.Has(c) == "" {
			t.Skipf("no %s controller", c)
		}
	}
	path := newGroup(t, h)
	node := func(max vnode.Bytes, swap vnode.Bytes) *vnode.Node {
		n := &vnode.Node{Memory: vnode.Memory{Max: max}}
		if h.V1Swap && swap >= 0 {
			n.Memory.Swap = &swap
		}
		return n
	}
	full := node(1<<30, 0)
	full.CPU, full.PIDs = vnode.CPU{Weight: 200, Max: 500, Set: "0"}, 10
	now := []*Limit(nil)
	for i, next := range []*vnode.Node{node(100<<20, -1), node(200<<20, 0), node(300<<20, 0), node(150<<20, 0), full, {}, full, node(1<<30, 1<<20)} {
		limits, err := Limits(next, h, path, nil)
		testkit.Must(t, err)
		before := grouptest.Contents(t, h, path, files()...)
		steps := Changes(now, limits)
		for _, s := range steps {
			testkit.Must(t, s.(step.Preparer).Prepare(t.Context()))
			testkit.Must(t, s.Do(t.Context()))
			testkit.Must(t, s.Verify(t.Context()))
		}
		after := grouptest.Contents(t, h, path, files()...)
		for _, s := range slices.Backward(steps) {
			testkit.Must(t, s.Undo(t.Context()))
		}
		if diff := cmp.Diff(before, grouptest.Contents(t, h, path, files()...)); diff != "" {
			t.Fatalf("undo of change %d: %s", i, diff)
		}
		for _, s := range steps {
			testkit.Must(t, s.Do(t.Context()))
		}
		if diff := cmp.Diff(after, grouptest.Contents(t, h, path, files()...)); diff != "" {
			t.Fatalf("change %d again: %s", i, diff)
		}
		shown, err := Read(limits)
		testkit.Must(t, err)
		for _, s := range shown {
			if !s.Holds {
				t.Errorf("change %d: %+v", i, s)
			}
		}
		now = limits
	}
}

// TestKernelMemoryInUse: a memory.max below what a node holds is refused before anything is changed. The error tells what
// the node holds.
func TestKernelMemoryInUse(t *testing.T) {
	h := grouptest.Host(t)
	if h.Has("memory") == "" {
		t.Skip("no memory controller")
	}
	if swaps(vnode.Memory{}) {
		t.Skip("this host has swap: the kernel makes room")
	}
	path := newGroup(t, h)
	cmd := grouptest.Enter(t, h, path, `x=$(head -c 33554432 /dev/zero | tr '\0' a); sleep 100`)
	if held := waitHeld(t, h, path, 32<<20); held.processes < 32<<20 {
		t.Fatalf("the group holds %+v", held)
	}
	err := CheckMemory(vnode.Memory{Max: 16 << 20}, vnode.Memory{}, h, path)
	if refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "its processes ") || !strings.Contains(err.Error(), "or ask for at least ") {
		t.Errorf("16 MiB for what holds 32: %v", err)
	}
	for _, ok := range []vnode.Memory{{}, {Max: 100 << 20}} {
		if err := CheckMemory(ok, vnode.Memory{}, h, path); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
	if h.Has("memory") == "v1" { // without the check beforehand the kernel refuses it
		limits, err := Limits(&vnode.Node{Memory: vnode.Memory{Max: 16 << 20}}, h, path, nil)
		testkit.Must(t, err)
		if err := limits[0].Do(t.Context()); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "in use back (memory.limit_in_bytes)") {
			t.Errorf("the kernel's answer: %v", err)
		}
	}
	testkit.Must(t, cmd.Process.Kill())
}

// waitHeld waits until the processes of a group hold at least this much memory, as long as the test may take.
func waitHeld(t *testing.T, h host.Cgroups, path string, least vnode.Bytes) (now held) {
	t.Helper()
	for t.Context().Err() == nil {
		if now = holds(h, path); now.processes >= least {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return now
}

func TestKernelThrottle(t *testing.T) {
	h := grouptest.Host(t)
	if h.Has("blkio") == "" && h.Has("io") == "" {
		t.Skip("no blkio or io controller")
	}
	disk, err := block.Resolve("/sys", loop.ForTest(t, 16<<20))
	testkit.Must(t, err)
	path := newGroup(t, h)
	disks := map[string]block.Disk{"data": disk}
	limits := func(read, write vnode.IORate) []*Limit {
		l, err := Limits(&vnode.Node{IO: []vnode.IO{{Name: "data", Read: read, Write: write}}}, h, path, disks)
		testkit.Must(t, err)
		return l
	}
	all := limits(vnode.IORate{Rate: 10e6, IOPS: math.MaxUint32 - 1}, vnode.IORate{Rate: 1234567, IOPS: 1})
	for _, l := range all {
		do(t, l)
	}
	check := func(limits []*Limit, want ...string) {
		t.Helper()
		shown, err := Read(limits)
		testkit.Must(t, err)
		var got []string
		for _, s := range shown {
			got = append(got, s.Key+" "+s.ReadBack)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	check(all, "io.data.read.rate 10MB/s", "io.data.read.iops 4294967294", "io.data.write.rate 1234567B/s", "io.data.write.iops 1")

	less := limits(vnode.IORate{Rate: 25e6}, vnode.IORate{Rate: 1234567})
	for _, s := range Changes(all, less) {
		do(t, s)
	}
	check(all, "io.data.read.rate 25MB/s", "io.data.read.iops max", "io.data.write.rate 1234567B/s", "io.data.write.iops max")
}

// TestKernelOOM counts a process that was killed for lack of memory.
func TestKernelOOM(t *testing.T) {
	h := grouptest.Host(t)
	if h.Has("memory") == "" {
		t.Skip("no memory controller")
	}
	path := newGroup(t, h)
	limits, err := Limits(&vnode.Node{Memory: vnode.Memory{Max: 16 << 20}}, h, path, nil)
	testkit.Must(t, err)
	do(t, limits[0])
	grouptest.Enter(t, h, path, "a=xxxxxxxxxxxxxxxx; while :; do a=$a$a; done")
	testkit.Eventually(t, "the kernel to kill", func() bool {
		kills := counters.Stats(h, path).OOMKills
		return kills != nil && *kills > 0
	})
	if hits := counters.Stats(h, path).AtLimit; hits == nil || *hits == 0 {
		t.Errorf("times at the limit: %v", hits)
	}
}

// TestKernelForkBomb kills a group that forks as fast as it can, and removes it.
func TestKernelForkBomb(t *testing.T) {
	h := grouptest.Host(t)
	if h.Has("pids") == "" {
		t.Skip("no pids controller: a fork bomb would not stay inside")
	}
	path := newGroup(t, h)
	limits, err := Limits(&vnode.Node{PIDs: 200}, h, path, nil)
	testkit.Must(t, err)
	do(t, limits[0])
	grouptest.Enter(t, h, path, "f() { while :; do f & done; }; f 2>/dev/null")
	testkit.Eventually(t, "the bomb to fill its group", func() bool {
		pids := counters.Stats(h, path).PIDs
		return pids != nil && *pids > 150
	})
	start := time.Now()
	testkit.Must(t, group.Kill(t.Context(), h, path))
	t.Log("killed in", time.Since(start))
	pids, err := group.Procs(h, path)
	testkit.Must(t, err)
	if len(pids) > 0 {
		t.Errorf("left: %v", pids)
	}
}
