package top

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/node"
	"berth/internal/node/protect"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// BenchmarkSample takes samples of 1,000 nodes: groups of the kernel's in every hierarchy of this host, and a process
// each (this one). docs/top.md has the figure.
func BenchmarkSample(b *testing.B) {
	testkit.NeedsRoot(b)
	const count = 1000
	nodes := node.Open(layout.New(b.TempDir()), node.Beside{})
	boot, err := step.BootID()
	if err != nil {
		b.Fatal(err)
	}
	self, err := proc.Self()
	if err != nil {
		b.Fatal(err)
	}
	for i := range count {
		name := fmt.Sprintf("n%d", i)
		text, _ := json.Marshal(node.Status{Name: name, State: node.Running, PID: self.PID, Start: self.Start, Boot: boot, Image: "host", UserNS: true})
		dirs := nodes.Layout.Node(name)
		for _, d := range []string{dirs.Lib, dirs.Run} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(dirs.Status(), text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	makeGroups(b, nodes.Layout, count)
	s, err := New(b.Context(), nodes, protect.New(nodes.Layout), nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		sample, err := s.Sample(b.Context())
		if err != nil || len(sample.Nodes) != count {
			b.Fatalf("%d nodes, %v", len(sample.Nodes), err)
		}
	}
}

// makeGroups makes a group of each node in every hierarchy, as berth does.
func makeGroups(b *testing.B, l layout.Layout, nodes int) {
	b.Helper()
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		b.Fatal(err)
	}
	mounts := map[string]bool{}
	if dir := group.V2Dir(cg, ""); dir != "" {
		mounts[dir] = true
	}
	for _, m := range cg.V1 {
		mounts[m] = true
	}
	for m := range mounts {
		parent := filepath.Join(m, l.CgroupParent())
		b.Cleanup(func() { _ = unix.Rmdir(parent) }) // runs last
		for i := range nodes {
			dir := filepath.Join(parent, fmt.Sprintf("n%d", i))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = unix.Rmdir(dir) })
		}
	}
}
