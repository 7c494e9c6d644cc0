package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/runner"
	"berth/internal/storage/mounts"
	"berth/test/testkit"
)

// TestChoose checks that the first call probes and later ones only read files.
func TestChoose(t *testing.T) {
	testkit.NeedsRoot(t)
	if len(paths()) == 0 {
		t.Skip("neither runc nor crun is installed")
	}
	if _, err := os.Stat("/bin/busybox"); err != nil {
		t.Skip("no static program to run: busybox-static is not installed")
	}
	dir := testkit.Dir(t, "")
	c, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	bench := runner.Bench{Program: "/bin/busybox", Args: []string{"--help"}, Groups: probeGroup(t, c)}
	cache := filepath.Join(dir, "runtime.json")
	trial := runner.Trial{
		Cache: cache, Boot: "boot 1", Dir: dir, IDs: mounts.IDs{Base: testIDBase, Size: testIDSize}, Rounds: 3,
		Begin: func(context.Context) (runner.Bench, func() error, error) {
			return bench, func() error { return nil }, nil
		},
	}
	first, err := choose(t.Context(), trial)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range first.Tried {
		t.Log(r)
		if r.Why != "" {
			t.Error(r)
		}
	}
	// From here on a probe would fail.
	bench.Program = "/no/such/program"
	second, err := choose(t.Context(), trial)
	if err != nil {
		t.Fatal(err)
	}
	if second.Best != first.Best {
		t.Errorf("remembered %v, found %v", second.Best, first.Best)
	}
	trial.Boot = "boot 2"
	if _, err := choose(t.Context(), trial); err == nil {
		t.Error("a choice of another boot was taken")
	} else {
		t.Log(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left in the folder: %v %v, want the cache alone", left, err)
	}
}

// TestProbeHybrid checks that the probe finds that crun does not work with a hybrid hierarchy, and chooses runc.
func TestProbeHybrid(t *testing.T) {
	c, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	testkit.NeedsRoot(t)
	if len(paths()) < 2 || c.Mode() != "hybrid" {
		t.Skip("needs runc and crun, and a hybrid cgroup hierarchy")
	}
	dir := testkit.Dir(t, "")
	got, err := probe(t.Context(), runner.Trial{Dir: dir, IDs: mounts.IDs{Base: testIDBase, Size: testIDSize}, Rounds: 1}, runner.Bench{
		Program: "/bin/busybox", Groups: runner.Groups{Path: probeGroup(t, c).Path}, // crun is not told of the hierarchies
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Best.Name != "runc" {
		t.Errorf("chose %v", got.Best)
	}
	for _, r := range got.Tried {
		t.Log(r)
	}
}

// probeGroup makes a cgroup for trials, which is removed at the end of the test.
func probeGroup(t *testing.T, c host.Cgroups) runner.Groups {
	t.Helper()
	g := runner.Groups{Path: fmt.Sprintf("berth-test-probe-%d", os.Getpid()), Host: c}
	if err := group.Make(t.Context(), c, g.Path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(context.Background(), c, g.Path); err != nil {
			t.Error(err)
		}
	})
	return g
}
