package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/step"
)

// BenchmarkSample takes samples of 1,000 nodes: groups of the kernel's in every hierarchy of this host, and a process
// each (this one). docs/top.md has the figure.
func BenchmarkSample(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	const nodes = 1000
	berth, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	boot, err := step.BootID()
	if err != nil {
		b.Fatal(err)
	}
	start, _ := startTime(os.Getpid())
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		text, _ := json.Marshal(Status{Name: name, State: Running, PID: os.Getpid(), Start: start, Boot: boot, Image: "host", UserNS: true})
		dirs := berth.Layout.Node(name)
		for _, d := range []string{dirs.Lib, dirs.Run} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(dirs.Status(), text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	makeGroups(b, berth, nodes)
	s, err := berth.NewSampler(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		sample, err := s.Sample(b.Context())
		if err != nil || len(sample.Nodes) != nodes {
			b.Fatalf("%d nodes, %v", len(sample.Nodes), err)
		}
	}
}

// makeGroups makes a group of each node in every hierarchy, as berth does.
func makeGroups(b *testing.B, berth *Berth, nodes int) {
	b.Helper()
	cg, err := berth.cgroups()
	if err != nil {
		b.Fatal(err)
	}
	mounts := map[string]bool{}
	if dir := cgroup.V2Dir(cg, ""); dir != "" {
		mounts[dir] = true
	}
	for _, m := range cg.V1 {
		mounts[m] = true
	}
	for m := range mounts {
		parent := filepath.Join(m, berth.Layout.CgroupParent())
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
