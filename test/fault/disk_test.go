package fault

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/testkit"
)

// TestWeightKilledAtEachStep kills apply and rm of a node for which Berth switches a disk to BFQ. Once the node is removed, the
// disk has its former scheduler and nr_requests, and Berth's notes about it are gone.
func TestWeightKilledAtEachStep(t *testing.T) {
	disk := ""
	s := newScene(t, node{"weight", func(w *world) string {
		disk = w.disk()
		testkit.Must(w, os.WriteFile(filepath.Join("/sys/block", filepath.Base(disk), "queue/nr_requests"), []byte("77"), 0))
		return "\nname: f1\nimage: host\ncommand: [/bin/sleep, infinity]\nio: [{name: d, device: " + disk + ", weight: 50, engine: bfq}]\n"
	}})
	home := func(what string) {
		t.Helper()
		now, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(disk), "queue/scheduler"))
		testkit.Must(s, err)
		requests, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(disk), "queue/nr_requests"))
		testkit.Must(s, err)
		left, _ := filepath.Glob("/run/berth.disks/" + filepath.Base(disk) + ".*")
		if !strings.Contains(string(now), "[none]") || string(requests) != "77\n" || len(left) > 0 {
			t.Fatalf("%s: the scheduler is %s with %s requests, left are %q", what, now, requests, left)
		}
	}
	home("made and removed")
	s.steps(func(n int) bool {
		what, killed := s.point(n, "apply", "-f", s.spec)
		if killed {
			s.repaired(what, "none", "up")
			home(what)
		}
		s.works(what)
		home(what)
		return killed
	})
	s.steps(func(n int) bool {
		s.ok("apply", "-f", s.spec)
		what, killed := s.point(n, "rm", "--force", "f1")
		if killed {
			s.repaired(what, "none", "up")
		}
		home(what)
		s.works(what)
		return killed
	})
}

// disk makes a loop device. It skips the test if the kernel has no BFQ.
func (w *world) disk() string {
	w.Helper()
	file := w.dir + "/disk"
	testkit.Must(w, os.WriteFile(file, nil, 0o600))
	testkit.Must(w, os.Truncate(file, 1<<20))
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		w.Skipf("needs a free loop device: %s", out)
	}
	disk := strings.TrimSpace(string(out))
	w.Cleanup(func() { _ = exec.Command("losetup", "--detach", disk).Run() })
	all, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(disk), "queue/scheduler"))
	if err != nil || !strings.Contains(string(all), "bfq") {
		w.Skipf("no BFQ in this kernel: %s, %v", all, err)
	}
	return disk
}
