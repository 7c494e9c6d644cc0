package cgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

func numaHost(h host.Cgroups) host.Cgroups {
	h.NUMA = map[int]host.NUMANode{0: {CPUs: "0-1", Memory: true}, 1: {CPUs: "2-3", Memory: true}, 2: {Memory: true}}
	return h
}

func TestClassSteps(t *testing.T) {
	tests := []struct {
		name, path string
		node       vnode.Node
		host       host.Cgroups
		want       string
	}{
		{"batch on v2", "berth.batch/x", vnode.Node{Class: vnode.Batch}, v2Host(), `
cgroup.class cpu.idle=1 io.weight=default 1 io.bfq.weight=default 1 io.prio.class=idle for all in berth.batch`},
		{"batch on v1", "berth.batch/x", vnode.Node{Class: vnode.Batch}, v1Host(), `
cgroup.class cpu.idle=1 blkio.bfq.weight=1 blkio.prio.class=idle for all in berth.batch`},
		{"batch that does not give way on the CPU", "berth.batch-busy/x", vnode.Node{Class: vnode.Batch, CPU: vnode.CPU{Idle: ptr(false)}}, v2Host(), `
cgroup.class io.weight=default 1 io.bfq.weight=default 1 io.prio.class=idle for all in berth.batch-busy`},
		{"idle without a class", "berth.idle/x", vnode.Node{CPU: vnode.CPU{Idle: ptr(true)}}, v2Host(), `
cgroup.class cpu.idle=1 for all in berth.idle`},
		{"storage on v2", "berth.storage/x", vnode.Node{Class: vnode.Storage, Memory: vnode.Memory{Max: 1 << 30}}, v2Host(), `
cgroup.limit memory.max 1GiB → memory.max=1073741824
cgroup.limit memory.low 512MiB → memory.low=536870912 (from class storage: 50 % of memory.max)
cgroup.class cpu.weight=1000 io.weight=default 1000 io.bfq.weight=default 1000 for all in berth.storage`},
		{"storage, with another low", "berth.storage/x", vnode.Node{Class: vnode.Storage, Memory: vnode.Memory{Max: 1 << 30, Min: 1 << 28}}, v2Host(), `
cgroup.limit memory.max 1GiB → memory.max=1073741824
cgroup.limit memory.min 256MiB → memory.min=268435456
cgroup.class cpu.weight=1000 io.weight=default 1000 io.bfq.weight=default 1000 for all in berth.storage`},
		{"storage on v1", "berth.storage/x", vnode.Node{Class: vnode.Storage, Memory: vnode.Memory{Max: 1 << 30}}, v1Host(), `
cgroup.limit memory.max 1GiB → memory.kmem.tcp.limit_in_bytes=268435456 memory.limit_in_bytes=1073741824 (cgroup v1 counts TCP and UDP buffers apart: at most 256MiB beside it)
cgroup.class cpu.shares=10240 blkio.bfq.weight=1000 for all in berth.storage`},
		{"no class", "berth/x", vnode.Node{}, v2Host(), ""},
		{"NUMA", "berth/x", vnode.Node{CPU: vnode.CPU{NUMA: ptr(1)}}, numaHost(v2Host()), `
cgroup.limit cpu.set 2-3 → cpuset.cpus=2-3 (the CPUs of NUMA node 1)
cgroup.limit cpu.numa 1 → cpuset.mems=1`},
		{"NUMA and a set", "berth/x", vnode.Node{CPU: vnode.CPU{NUMA: ptr(1), Set: "1-2"}}, numaHost(v1Host()), `
cgroup.limit cpu.set 1-2 → cpuset.cpus=2 (those of them that NUMA node 1 has)
cgroup.limit cpu.numa 1 → cpuset.mems=1`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.node.Name = "x"
			if got := "berth." + tt.node.Place() + "/x"; strings.Trim(strings.Replace(got, "./", "/", 1), ".") != tt.path {
				t.Errorf("place %q, want %s", got, tt.path)
			}
			steps, err := Steps(&tt.node, tt.host, tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, s := range steps {
				if k := s.Kind(); k == "cgroup.limit" || k == "cgroup.class" {
					got += fmt.Sprintf("\n%s %s", k, s)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNUMARefusals(t *testing.T) {
	tests := []struct {
		name string
		cpu  vnode.CPU
		want string
	}{
		{"no such node", vnode.CPU{NUMA: ptr(3)}, "cpu.numa 3: this host has NUMA nodes 0, 1, 2"},
		{"memory alone", vnode.CPU{NUMA: ptr(2)}, "cpu.numa 2: NUMA node 2 of this host lacks CPUs or memory"},
		{"nothing in both", vnode.CPU{NUMA: ptr(1), Set: "0-1"}, "cpu.numa 1 with cpu.set 0-1: no CPU is in both; NUMA node 1 has CPUs 2-3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Steps(&vnode.Node{CPU: tt.cpu}, numaHost(v2Host()), "berth/x", nil)
			if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestSum makes two groups in a parent of plain files: the parent gets the sum of their protection.
func TestSum(t *testing.T) {
	top := t.TempDir()
	file := func(parts ...string) string { return filepath.Join(append([]string{top}, parts...)...) }
	for _, d := range []string{"berth/a", "berth/b"} {
		if err := os.MkdirAll(file(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"berth/memory.low", "berth/a/memory.low", "berth/b/memory.low"} {
		if err := os.WriteFile(file(f), []byte("0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ group, value, want string }{
		{"a", "1073741824", "1073741824"},
		{"b", "1048576", "1074790400"},
		{"a", "0", "1048576"},
		{"a", "max", "max"},
	} {
		if err := (Write{File: file("berth", tt.group, "memory.low"), Value: tt.value, Sum: true}).do(); err != nil {
			t.Fatal(err)
		}
		if got, _ := readFile(file("berth/memory.low")); got != tt.want {
			t.Errorf("%s to %s: the parent has %s, want %s", tt.group, tt.value, got, tt.want)
		}
	}
	if err := (Write{File: file("berth/memory.low"), Value: "0", Sum: true}).do(); err != nil { // the parent is the root of the tree
		t.Error(err)
	}
}

// TestFileThatComesLate makes v2 groups of plain files that exist before BFQ's module is loaded. The module adds a file to
// each group, with 100 in it.
func TestFileThatComesLate(t *testing.T) {
	h := host.Cgroups{V2: t.TempDir(), V2Controllers: []string{"cpu", "io"}}
	write := func(group, name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(h.V2, group), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(h.V2, group, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(group, name string) string {
		got, err := readFile(filepath.Join(h.V2, group, name))
		if err != nil {
			t.Error(err)
		}
		return got
	}
	groups := []string{"berth.batch", "mine", "theirs"}
	for _, g := range groups {
		write(g, "cpu.weight", "100")
		write(g, "io.weight", "default 100")
	}
	write("berth.batch", "cpu.idle", "0")
	c := ClassStep(&vnode.Node{Class: vnode.Batch}, h, "berth.batch/x")
	must(t, c.Do(t.Context()))
	must(t, c.Verify(t.Context()))
	foreign := map[string]*Foreign{}
	for _, g := range groups[1:] {
		f := ForeignStep(vnode.Storage.Standing(), h, g, 0)
		must(t, f.Prepare(t.Context()))
		must(t, f.Do(t.Context()))
		must(t, f.Verify(t.Context()))
		must(t, f.Fill())
		foreign[g] = f
	}
	if NormalToBFQ(h, "mine") {
		t.Error("a group is known to a BFQ that is not there")
	}

	for _, g := range groups {
		write(g, "io.bfq.weight", "default 100")
	}
	write("mine", "cpu.weight", "77") // by its owner, meanwhile
	write("theirs", "io.bfq.weight", "default 55")
	if !NormalToBFQ(h, "mine") || NormalToBFQ(h, "theirs") {
		t.Error("100 is normal, 55 is not")
	}
	if c.Verify(t.Context()) == nil {
		t.Error("the class holds, but not in the file that came")
	}
	must(t, c.Do(t.Context()))
	must(t, c.Verify(t.Context()))
	for _, f := range foreign {
		must(t, f.Fill())
	}
	for _, tt := range [][3]string{
		{"berth.batch", "io.bfq.weight", "default 1"},
		{"mine", "io.bfq.weight", "default 1000"},
		{"mine", "cpu.weight", "77"},
		{"theirs", "io.bfq.weight", "default 55"},
	} {
		if got := read(tt[0], tt[1]); got != tt[2] {
			t.Errorf("%s of %s is %s, want %s", tt[1], tt[0], got, tt[2])
		}
	}
	must(t, foreign["mine"].Undo(t.Context()))
	if got := read("mine", "io.bfq.weight"); got != "default 100" {
		t.Errorf("io.bfq.weight is %s after undo", got)
	}
}

// TestKernelClass gives a group of this host the values of class batch.
func TestKernelClass(t *testing.T) {
	h := thisHost(t)
	c := ClassStep(&vnode.Node{Class: vnode.Batch}, h, newGroup(t, h)+"/x")
	if c == nil {
		t.Skip("no cgroup controller here that shares CPU time or disks")
	}
	for range 2 { // as each node of the class does
		if err := c.Do(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := c.Verify(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	shown, err := ShowClass(&vnode.Node{Class: vnode.Batch}, h, c.Name+"/x", true)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shown {
		t.Logf("%s %s: %s by %s (%s)", s.Key, s.Asked, s.ReadBack, s.HonouredBy, s.Note)
		if s.Key == "class.cpu" && !s.Holds {
			t.Errorf("%+v", s)
		}
	}
}
