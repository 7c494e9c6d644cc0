package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/host"
	"berth/internal/mounts"
)

// TestChoose checks that the first call probes and later ones only read files.
func TestChoose(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root: nodes need it")
	}
	if len(paths()) == 0 {
		t.Skip("neither runc nor crun is installed")
	}
	if _, err := os.Stat("/bin/busybox"); err != nil {
		t.Skip("no static program to run: busybox-static is not installed")
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	c, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	trial := Trial{
		Dir: dir, Program: "/bin/busybox", Args: []string{"--help"}, IDs: mounts.IDs{Base: testIDBase, Size: testIDSize},
		Group: probeGroup(t, "probe"), Rounds: 3,
		Adapt: func(l *Launch) {
			if l.Runtime.Name == "crun" && c.Mode() == "hybrid" {
				l.Plan.Hide = []string{c.V2}
			}
		},
	}
	cache := filepath.Join(dir, "runtime.json")
	first, err := Choose(t.Context(), cache, "boot 1", trial)
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
	gone := trial
	gone.Program = "/no/such/program"
	second, err := Choose(t.Context(), cache, "boot 1", gone)
	if err != nil {
		t.Fatal(err)
	}
	if second.Best != first.Best {
		t.Errorf("remembered %v, found %v", second.Best, first.Best)
	}
	if _, err := Choose(t.Context(), cache, "boot 2", gone); err == nil {
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
	if os.Getuid() != 0 || len(paths()) < 2 || c.Mode() != "hybrid" {
		t.Skip("needs root, runc and crun, and a hybrid cgroup hierarchy")
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	got, err := Probe(context.Background(), Trial{
		Dir: dir, Program: "/bin/busybox", IDs: mounts.IDs{Base: testIDBase, Size: testIDSize},
		Group: probeGroup(t, "hybrid"), Rounds: 1,
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

// probeGroup returns the path of a cgroup for trials, which is removed at the end of the test.
func probeGroup(t *testing.T, name string) string {
	t.Helper()
	group := fmt.Sprintf("/berth-test-%s-%d", name, os.Getpid())
	t.Cleanup(func() {
		all, _, _ := cgroupMounts(t, "")
		for _, m := range all {
			if err := os.Remove(filepath.Join(m, group)); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	return group
}
