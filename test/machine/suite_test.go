package machine

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/runner/machine"
	"berth/internal/runner/runnertest"
	"berth/internal/storage/mounts"
)

// TestConformance runs the suite of all runners.
func TestConformance(t *testing.T) {
	needs(t)
	r, err := machine.Family{}.Choose(t.Context(), runner.Trial{Cache: filepath.Join(t.TempDir(), "cache.json")})
	if err != nil {
		t.Fatal(err)
	}
	image := packedImage(t)
	runnertest.Suite{Family: machine.Family{}, Runner: r, Apart: true, Spec: func(t *testing.T, dir, script string) runner.Spec {
		root := filepath.Join(dir, "root")
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		return runner.Spec{
			Node: "m", Hostname: "m", Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Stop: unix.SIGTERM,
			Content: mounts.Plan{IDs: mounts.IDs{Base: 0x7ffe0000, Size: 65536}, Root: mounts.Root{At: root, Packed: image, Memory: true}},
			Machine: &runner.Machine{CPUs: 1, Memory: 256 << 20, Kernel: bench.kernel},
		}
	}}.Run(t)
}
