package fault

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// pausedAt runs berth, pauses it at a fault point, by number or name, calls meanwhile, and lets berth continue.
func (s *scene) pausedAt(at any, meanwhile func(), args ...string) (what string, r result, paused bool) {
	s.Helper()
	_ = os.Remove(s.faults())
	j := s.begin([]string{fmt.Sprint("BERTH_FAULT_STOP=", at), "BERTH_FAULT_LOG=" + s.faults()}, args...)
	state := byte('R')
	if !testkit.Happens(func() bool { state = stateOf(j.cmd.Process.Pid); return state == 'T' || state == 'Z' || state == 0 }) {
		s.Fatalf("berth %v hangs:\n%s", args, whereabouts(j.cmd.Process.Pid))
	}
	passed := s.points()
	what = fmt.Sprintf("berth %s at %s", strings.Join(args, " "), passed[len(passed)-1])
	if paused = state == 'T'; paused {
		meanwhile()
		testkit.Must(s, unix.Kill(j.cmd.Process.Pid, unix.SIGCONT))
	}
	return what, j.wait(), paused
}

// stateOf returns a process's state letter of proc(5), 0 if there is no such process.
func stateOf(pid int) byte {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, rest, ok := strings.Cut(string(stat), ") "); ok && rest != "" {
		return rest[0]
	}
	return 0
}

// TestInitKilledUnderCommand kills the init of a running node at each step of a command. The command succeeds or fails with a
// sentence, the host is in an allowed state, and the node can be started again.
func TestInitKilledUnderCommand(t *testing.T) {
	each(t, []node{onHost, lent}, func(s *scene) {
		text, err := os.ReadFile(s.spec)
		testkit.Must(s, err)
		changed := s.file("changed.yaml", string(text)+"cpu: {max: 0.5}\n")
		if strings.Contains(string(text), "cpu:") {
			changed = s.file("changed.yaml", strings.Replace(string(text), "cpu: {max: 1.5}", "cpu: {max: 0.5}", 1))
		}
		for _, args := range [][]string{
			{"start", "f1"},
			{"apply", "-f", s.spec},
			{"apply", "-f", changed},
			{"set", "f1", "cpu.max=0.25"},
			{"stop", "--grace", "0s", "f1"},
			{"exec", "f1", "/bin/true"},
			{"repair"},
		} {
			s.steps(func(n int) bool {
				s.ok("apply", "-f", s.spec)
				pid := s.status("f1").PID
				what, r, paused := s.pausedAt(n, func() {
					if err := unix.Kill(pid, unix.SIGKILL); err != unix.ESRCH { // stop may have ended it already
						testkit.Must(s, err)
					}
					if !testkit.Happens(func() bool { st := stateOf(pid); return st == 'Z' || st == 0 }) {
						s.Fatalf("process %d does not end", pid)
					}
				}, args...)
				if r.code != 0 && args[0] != "exec" {
					s.failedWell(what, r)
				}
				s.settled(what+": "+r.String(), s.states, "down", "up")
				s.ok("apply", "--restart", "-f", s.spec)
				s.settled(what+": "+r.String()+"\nthen apply", s.states, "up")
				return paused
			})
		}
		s.ok("rm", "--force", "f1")
		s.settled("rm", s.states, "none")
	})
}
