package fault

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/sample"
	"berth/test/testkit"
)

// keeperPid returns the pid of this world's keeper, 0 if there is none.
func (w *world) keeperPid() int {
	w.Helper()
	for _, p := range w.processes() {
		if p.keeper && !p.zombie {
			return p.pid
		}
	}
	return 0
}

// passedByKeeper returns the fault points that this world's keepers have passed: number and name.
func (w *world) passedByKeeper() []string {
	text, _ := os.ReadFile(w.dir + "/keeper-faults")
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (w *world) lastOfKeeper() string {
	all := w.passedByKeeper()
	return all[len(all)-1]
}

// TestKeeperKilledAtEachStep kills the keeper at each of its steps: while it creates a node for apply, watches it, cleans up
// after its init has ended, and starts it again by its restart policy. The command that waits for the keeper succeeds, or
// fails with a sentence and leaves nothing. The next command starts another keeper, which catches up.
func TestKeeperKilledAtEachStep(t *testing.T) {
	each(t, []node{onHost, lent}, func(s *scene) {
		text, err := os.ReadFile(s.spec)
		testkit.Must(s, err)
		s.spec = s.file("always.yaml", string(text)+"restart: always\n")
		s.steps(func(n int) bool {
			s.endKeeper()
			_ = os.Remove(s.dir + "/keeper-faults")
			env := []string{fmt.Sprint("BERTH_FAULT_KEEPER=", n), "BERTH_FAULT_KEEPER_LOG=" + s.dir + "/keeper-faults"}
			r := s.begin(env, "apply", "-f", s.spec).wait()
			what := "the keeper of apply killed at " + s.lastOfKeeper()
			if r.code != 0 {
				s.failedWell(what, r)
				s.settled(what, s.states, "none")
				s.ok("apply", "-f", s.spec)
				s.settled(what+"\nthen apply", s.states, "up")
			}
			first := s.status("f1")
			testkit.Must(s, unix.Kill(first.PID, unix.SIGKILL))
			again := func() bool { st := s.status("f1"); return st.State == "running" && st.PID != first.PID }
			if !testkit.Happens(func() bool { return s.keeperPid() == 0 || again() }) {
				s.Fatalf("%s: the node is not started again: %+v", what, s.status("f1"))
			}
			what = "the keeper killed at " + s.lastOfKeeper()
			s.ok("repair")
			if !testkit.Happens(again) {
				s.Fatalf("%s: after repair the node is not started again: %+v", what, s.status("f1"))
			}
			s.settled(what+"\nthe node starts again", s.states, "up")
			s.ok("rm", "--force", "f1")
			s.ok("repair") // the keeper may reach its fault point only during rm
			s.settled(what+"\nthen rm", s.states, "none")
			return slices.ContainsFunc(s.passedByKeeper(), func(p string) bool { return strings.HasPrefix(p, fmt.Sprint(n, " ")) })
		})
	})
}

// failedWell checks that a command that failed said so in one sentence, with one of Berth's exit codes.
func (s *scene) failedWell(what string, r result) {
	s.Helper()
	said := strings.TrimSpace(r.err)
	if r.code < 1 || r.code > 5 || !strings.HasPrefix(said, "berth: ") || strings.Contains(said, "panic") {
		s.Errorf("%s: exit %d: %q", what, r.code, said)
	}
}

// TestKeeperKilledAtRandom kills the keeper at random moments while it creates a node. The runtime, its child, survives it
// and must have ended before the node is removed.
func TestKeeperKilledAtRandom(t *testing.T) {
	s := newScene(t, lent)
	failed := 0
	r := sample.Of(t)
	rounds := r.Rounds(30)
	for range rounds {
		s.endKeeper()
		delay := time.Duration(r.IntN(45_000)) * time.Microsecond
		what := fmt.Sprintf("the keeper killed %v after apply began", delay)
		j := s.begin(nil, "apply", "-f", s.spec)
		time.Sleep(delay)
		if pid := s.keeperPid(); pid != 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if r := j.wait(); r.code != 0 {
			failed++
			s.failedWell(what, r)
			s.settled(what+": "+r.String(), s.states, "none")
		}
		s.repaired(what, "none", "up")
		s.works(what)
	}
	t.Logf("%d of %d applies failed", failed, rounds)
}

// TestInitKilledWithNoCommand kills process 1 of a node while no command runs: its link comes back to the host and its exit
// status is recorded, within a second where speed is measured.
func TestInitKilledWithNoCommand(t *testing.T) {
	s := newScene(t, lent)
	slow := 0
	for range 5 {
		s.ok("apply", "-f", s.spec)
		pid := s.status("f1").PID
		killed := time.Now()
		testkit.Must(s, unix.Kill(pid, unix.SIGKILL))
		s.settled("init killed", s.states, "down")
		took := time.Since(killed)
		if st := s.status("f1"); st.State != "exited" || st.Exit == nil || st.Exit.Code != 137 || st.Exit.Signal != "SIGKILL" {
			t.Errorf("%+v, exit %+v", st, st.Exit)
		}
		if took > time.Second && testkit.Measures() {
			slow++
		}
		t.Logf("home after %v", took.Round(time.Millisecond))
	}
	if slow > 1 { // once, the machine may have been busy
		t.Errorf("%d of 5 times it took more than a second", slow)
	}
	s.ok("rm", "f1")
}
