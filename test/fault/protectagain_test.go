package fault

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/testkit"
)

// TestProtectedDiskAgain unplugs and replugs the disk of a protected service, and kills the repair that switches the disk back
// to its engine. The next repair completes the switch, and unprotect restores the disk's former scheduler.
func TestProtectedDiskAgain(t *testing.T) {
	s := newService(t)
	img := s.file("disk", "")
	testkit.Must(s, os.Truncate(img, 16<<20))
	loop := ""
	plug := func() {
		out, err := exec.Command("losetup", "--find", "--show", img).Output()
		if err != nil {
			t.Skipf("no loop device: %v", err)
		}
		loop = strings.TrimSpace(string(out))
	}
	file := func(name string) string { return filepath.Join("/sys/block", filepath.Base(loop), name) }
	scheduler := func() string {
		text, err := os.ReadFile(file("queue/scheduler"))
		testkit.Must(s, err)
		return string(text)
	}
	unplug := func() {
		testkit.Must(s, exec.Command("losetup", "--detach", loop).Run())
		if !testkit.Happens(func() bool { _, err := os.Stat(file("loop")); return err != nil }) {
			t.Fatalf("%s keeps its file", loop)
		}
	}
	plug()
	t.Cleanup(unplug)
	if !strings.Contains(scheduler(), "bfq") {
		t.Skip("no BFQ in this kernel")
	}
	off := func() { testkit.Must(s, os.WriteFile(file("queue/scheduler"), []byte("none"), 0)) } // the scheduler that a new disk has
	off()
	s.steps(func(n int) bool {
		s.ok("protect", s.pid, "--disk", loop, "--engine", "bfq")
		off()
		unplug()
		plug()
		off()
		what, killed := s.point(n, "repair")
		s.ok("repair")
		if now := scheduler(); !strings.Contains(now, "[bfq]") {
			t.Errorf("%s: the scheduler is %s", what, now)
		}
		s.ok("unprotect", s.pid)
		s.home(what)
		if now := scheduler(); !strings.Contains(now, "[none]") {
			t.Errorf("%s: the disk was left with %s", what, now)
		}
		return killed && !s.Failed()
	})
}
