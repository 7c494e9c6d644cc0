package fault

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// service stands for a storage service of the host: a process with a child, in cgroups that Berth did not choose.
type service struct {
	*scene
	pid, child string
	before     string // the cgroups of both
}

func newService(t *testing.T) *service {
	t.Helper()
	w := newWorld(t)
	cmd := exec.Command("sh", "-c", "sleep 1000 & wait")
	testkit.Must(w, cmd.Start())
	s := &service{scene: &scene{world: w}, pid: strconv.Itoa(cmd.Process.Pid)}
	t.Cleanup(func() {
		if pid, err := strconv.Atoi(s.child); err == nil {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // returns an error: the process was killed
	})
	if !testkit.Happens(func() bool {
		text, _ := os.ReadFile("/proc/" + s.pid + "/task/" + s.pid + "/children")
		s.child = strings.TrimSpace(string(text))
		return s.child != ""
	}) {
		t.Fatal("the service does not start its child")
	}
	s.before = s.groups()
	return s
}

func (s *service) groups() string {
	s.Helper()
	var all strings.Builder
	for _, pid := range []string{s.pid, s.child} {
		text, err := os.ReadFile("/proc/" + pid + "/cgroup")
		testkit.Must(s, err)
		all.Write(text)
	}
	return all.String()
}

// home checks that nothing is left of a protection.
func (s *service) home(what string) {
	s.Helper()
	if now := s.groups(); now != s.before {
		s.Errorf("%s: the service is in\n%s, it was in\n%s", what, now, s.before)
	}
	for _, top := range append([]string{s.cg.V2}, mountsOf(s.cg.V1)...) {
		if left, _ := filepath.Glob(filepath.Join(top, s.l.StandingCgroup("pid")+"*")); top != "" && len(left) > 0 {
			s.Errorf("%s: left: %v", what, left)
		}
	}
	if left, _ := os.ReadDir(s.l.Protected()); len(left) > 0 {
		s.Errorf("%s: left: %v", what, left)
	}
}

func mountsOf(v1 map[string]string) []string {
	var all []string
	for _, m := range v1 {
		all = append(all, m)
	}
	return all
}

// TestProtectKilled kills berth protect and berth unprotect at each of their fault points. After repair the service is either
// protected or in its former cgroups.
func TestProtectKilled(t *testing.T) {
	s := newService(t)
	s.steps(func(n int) bool {
		what, killed := s.point(n, "protect", s.pid)
		s.ok("repair")
		if s.groups() != s.before { // it was killed when all its work was done
			s.ok("unprotect", s.pid)
		}
		s.home(what)
		return killed && !s.Failed()
	})
	s.steps(func(n int) bool {
		s.ok("protect", s.pid)
		if s.groups() == s.before {
			s.Fatal("the service is not in a group of its own")
		}
		what, killed := s.point(n, "unprotect", s.pid)
		s.ok("repair")
		if s.groups() != s.before { // it was killed before it began
			s.ok("unprotect", s.pid)
		}
		s.home(what)
		return killed && !s.Failed()
	})
}

// TestProtectedDisk kills berth protect while it switches the engine of a disk.
func TestProtectedDisk(t *testing.T) {
	s := newService(t)
	img := s.file("disk", "")
	testkit.Must(s, os.Truncate(img, 16<<20))
	out, err := exec.Command("losetup", "--find", "--show", img).Output()
	if err != nil {
		t.Skipf("no loop device: %v", err)
	}
	loop := strings.TrimSpace(string(out))
	t.Cleanup(func() { testkit.Must(s, exec.Command("losetup", "--detach", loop).Run()) })
	scheduler := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/sys/block/%s/queue/scheduler", filepath.Base(loop)))
		testkit.Must(s, err)
		return string(text)
	}
	before := scheduler()
	if !strings.Contains(before, "bfq") {
		t.Skip("no BFQ in this kernel")
	}
	s.steps(func(n int) bool {
		what, killed := s.point(n, "protect", s.pid, "--disk", loop, "--engine", "bfq")
		s.ok("repair")
		if s.groups() != s.before {
			s.ok("unprotect", s.pid)
		}
		s.home(what)
		if now := scheduler(); now != before {
			t.Errorf("%s: the scheduler is %s, it was %s", what, now, before)
		}
		return killed && !s.Failed()
	})
}
