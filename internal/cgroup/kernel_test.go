package cgroup

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/block"
	"berth/internal/host"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

// These tests run on the kernel of this host, in groups below a parent of their own.

func thisHost(t *testing.T) host.Cgroups {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: cannot make cgroups")
	}
	h, err := host.ReadCgroups("/proc")
	must(t, err)
	if len(h.V1) == 0 && h.V2 == "" {
		t.Skip("no cgroup hierarchy is mounted")
	}
	if h.V2 != "" { // controllers that the steps enable there are disabled again, unless another test needs them by then
		root := filepath.Join(h.V2, "cgroup.subtree_control")
		t.Cleanup(func() {
			for _, c := range usedOf(h) {
				if !slices.Contains(h.V2Enabled, c) {
					_ = writeFile(root, "-"+c)
				}
			}
		})
	}
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testParent() string { return fmt.Sprintf("berth-test-%d", os.Getpid()) }

// do runs a step as package node does, through its journal record.
func do(t *testing.T, s step.Step) {
	t.Helper()
	ctx := t.Context()
	if p, ok := s.(step.Preparer); ok {
		must(t, p.Prepare(ctx))
	}
	again := s
	t.Cleanup(func() {
		for range 2 { // the second time there is nothing left to undo
			if err := again.Undo(context.Background()); err != nil {
				t.Errorf("undo %s %s: %v", again.Kind(), again, err)
			}
		}
	})
	must(t, s.Do(ctx))
	must(t, s.Verify(ctx))
	record, err := json.Marshal(s)
	must(t, err)
	again, err = Kinds().Decode(s.Kind(), record)
	must(t, err)
}

// nothingLeft checks at the end that no hierarchy still has the parent.
func nothingLeft(t *testing.T, h host.Cgroups, parent string) {
	t.Helper()
	t.Cleanup(func() {
		for _, p := range places(h, parent) {
			t.Errorf("left behind: %s", p.dir)
		}
	})
}

// newGroup makes a group for the test.
func newGroup(t *testing.T, h host.Cgroups) (path string) {
	t.Helper()
	parent := testParent() + "-" + strings.ToLower(strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()))
	path = parent + "/wn"
	nothingLeft(t, h, parent)
	steps, err := groupSteps(h, path)
	must(t, err)
	for _, s := range steps {
		do(t, s)
	}
	return path
}

// enter starts a command inside the group, in all hierarchies.
func enter(t *testing.T, h host.Cgroups, path, script string) *exec.Cmd {
	t.Helper()
	join := ""
	for _, p := range places(h, path) {
		join += "echo $$ > " + p.dir + "/cgroup.procs && "
	}
	cmd := exec.Command("/bin/sh", "-c", join+"echo in && { "+script+"\n}")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
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

func TestKernelLimits(t *testing.T) {
	h := thisHost(t)
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
	must(t, err)
	for _, l := range limits {
		do(t, l)
	}
	shown, err := Read(limits)
	must(t, err)
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
	must(t, writeFile(pids.Writes[0].File, "78"))
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
	h := thisHost(t)
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
		must(t, err)
		before := contents(t, h, path)
		steps := Changes(now, limits)
		for _, s := range steps {
			must(t, s.(step.Preparer).Prepare(t.Context()))
			must(t, s.Do(t.Context()))
			must(t, s.Verify(t.Context()))
		}
		after := contents(t, h, path)
		for _, s := range slices.Backward(steps) {
			must(t, s.Undo(t.Context()))
		}
		if diff := cmp.Diff(before, contents(t, h, path)); diff != "" {
			t.Fatalf("undo of change %d: %s", i, diff)
		}
		for _, s := range steps {
			must(t, s.Do(t.Context()))
		}
		if diff := cmp.Diff(after, contents(t, h, path)); diff != "" {
			t.Fatalf("change %d again: %s", i, diff)
		}
		shown, err := Read(limits)
		must(t, err)
		for _, s := range shown {
			if !s.Holds {
				t.Errorf("change %d: %+v", i, s)
			}
		}
		now = limits
	}
}

// contents reads all control files that the limits write.
func contents(t *testing.T, h host.Cgroups, path string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, p := range places(h, path) {
		for _, name := range []string{
			"cpu.shares", "cpu.cfs_quota_us", "cpuset.cpus", "memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes",
			"memory.memsw.limit_in_bytes", "pids.max", "cpu.max", "cpu.weight", "memory.max", "memory.swap.max",
		} {
			if text, err := readFile(filepath.Join(p.dir, name)); err == nil {
				all[filepath.Join(p.dir, name)] = text
			}
		}
	}
	return all
}

// TestKernelMemoryInUse: a memory.max below what a node holds is refused before anything is changed. The error tells what
// the node holds.
func TestKernelMemoryInUse(t *testing.T) {
	h := thisHost(t)
	if h.Has("memory") == "" {
		t.Skip("no memory controller")
	}
	if swaps(vnode.Memory{}) {
		t.Skip("this host has swap: the kernel makes room")
	}
	path := newGroup(t, h)
	cmd := enter(t, h, path, `x=$(head -c 33554432 /dev/zero | tr '\0' a); sleep 100`)
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
		must(t, err)
		if err := limits[0].Do(t.Context()); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "in use back (memory.limit_in_bytes)") {
			t.Errorf("the kernel's answer: %v", err)
		}
	}
	must(t, cmd.Process.Kill())
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
	h := thisHost(t)
	if h.Has("blkio") == "" && h.Has("io") == "" {
		t.Skip("no blkio or io controller")
	}
	disk, err := block.Resolve("/sys", newLoop(t))
	must(t, err)
	path := newGroup(t, h)
	disks := map[string]block.Disk{"data": disk}
	limits := func(read, write vnode.IORate) []*Limit {
		l, err := Limits(&vnode.Node{IO: []vnode.IO{{Name: "data", Read: read, Write: write}}}, h, path, disks)
		must(t, err)
		return l
	}
	all := limits(vnode.IORate{Rate: 10e6, IOPS: math.MaxUint32 - 1}, vnode.IORate{Rate: 1234567, IOPS: 1})
	for _, l := range all {
		do(t, l)
	}
	check := func(limits []*Limit, want ...string) {
		t.Helper()
		shown, err := Read(limits)
		must(t, err)
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
