package weight

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/internal/spec/vnode"
	"berth/test/testkit"
)

func TestClassSteps(t *testing.T) {
	tests := []struct {
		name, path string
		node       vnode.Node
		host       host.Cgroups
		want       string
	}{
		{"batch on v2", "berth.batch/x", vnode.Node{Class: vnode.Batch}, grouptest.V2(), `
cgroup.class cpu.idle=1 io.weight=default 1 io.bfq.weight=default 1 io.prio.class=idle for all in berth.batch`},
		{"batch on v1", "berth.batch/x", vnode.Node{Class: vnode.Batch}, grouptest.V1(), `
cgroup.class cpu.idle=1 blkio.bfq.weight=1 blkio.prio.class=idle for all in berth.batch`},
		{"batch that does not give way on the CPU", "berth.batch-busy/x", vnode.Node{Class: vnode.Batch, CPU: vnode.CPU{Idle: new(false)}}, grouptest.V2(), `
cgroup.class io.weight=default 1 io.bfq.weight=default 1 io.prio.class=idle for all in berth.batch-busy`},
		{"idle without a class", "berth.idle/x", vnode.Node{CPU: vnode.CPU{Idle: new(true)}}, grouptest.V2(), `
cgroup.class cpu.idle=1 for all in berth.idle`},
		{"storage on v2", "berth.storage/x", vnode.Node{Class: vnode.Storage, Memory: vnode.Memory{Max: 1 << 30}}, grouptest.V2(), `
cgroup.class cpu.weight=1000 io.weight=default 1000 io.bfq.weight=default 1000 for all in berth.storage`},
		{"storage, with another low", "berth.storage/x", vnode.Node{Class: vnode.Storage, Memory: vnode.Memory{Max: 1 << 30, Min: 1 << 28}}, grouptest.V2(), `
cgroup.class cpu.weight=1000 io.weight=default 1000 io.bfq.weight=default 1000 for all in berth.storage`},
		{"storage on v1", "berth.storage/x", vnode.Node{Class: vnode.Storage, Memory: vnode.Memory{Max: 1 << 30}}, grouptest.V1(), `
cgroup.class cpu.shares=10240 blkio.bfq.weight=1000 for all in berth.storage`},
		{"no class", "berth/x", vnode.Node{}, grouptest.V2(), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.node.Name = "x"
			if got := "berth." + tt.node.StandingGroup() + "/x"; strings.Trim(strings.Replace(got, "./", "/", 1), ".") != tt.path {
				t.Errorf("place %q, want %s", got, tt.path)
			}
			got := ""
			if c := ClassStep(&tt.node, tt.host, tt.path); c != nil {
				got = fmt.Sprintf("\n%s %s", c.Kind(), c)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestFileThatComesLate makes v2 groups of plain files that exist before BFQ's module is loaded. The module adds a file to
// each group, with 100 in it.
func TestFileThatComesLate(t *testing.T) {
	h := host.Cgroups{V2: t.TempDir(), V2Controllers: []string{"cpu", "io"}}
	write := func(path, name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(h.V2, path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(h.V2, path, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path, name string) string { return grouptest.Text(t, filepath.Join(h.V2, path, name)) }
	groups := []string{"berth.batch", "mine", "theirs"}
	for _, g := range groups {
		write(g, "cpu.weight", "100")
		write(g, "io.weight", "default 100")
	}
	write("berth.batch", "cpu.idle", "0")
	c := ClassStep(&vnode.Node{Class: vnode.Batch}, h, "berth.batch/x")
	testkit.Must(t, c.Do(t.Context()))
	testkit.Must(t, c.Verify(t.Context()))
	foreign := map[string]*Foreign{}
	for _, g := range groups[1:] {
		f := ForeignStep(vnode.Storage.Standing(), h, g, 0)
		testkit.Must(t, f.Prepare(t.Context()))
		testkit.Must(t, f.Do(t.Context()))
		testkit.Must(t, f.Verify(t.Context()))
		testkit.Must(t, f.Fill())
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
	testkit.Must(t, c.Do(t.Context()))
	testkit.Must(t, c.Verify(t.Context()))
	for _, f := range foreign {
		testkit.Must(t, f.Fill())
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
	testkit.Must(t, foreign["mine"].Undo(t.Context()))
	if got := read("mine", "io.bfq.weight"); got != "default 100" {
		t.Errorf("io.bfq.weight is %s after undo", got)
	}
}

// TestKernelClass gives a group of this host the values of class batch.
func TestKernelClass(t *testing.T) {
	h := grouptest.Host(t)
	c := ClassStep(&vnode.Node{Class: vnode.Batch}, h, grouptest.New(t, h, group.Kinds(), group.Steps)+"/x")
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
		t.Logf("%s %s: %s by %s (%s)", s.Key, s.Asked, s.ReadBack, s.By, s.Note)
		if s.Key == "class.cpu" && !s.Holds {
			t.Errorf("%+v", s)
		}
	}
}
