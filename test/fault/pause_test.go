package fault

import (
	"strings"
	"testing"
)

// TestPauseKilledAtEachStep kills pause, unpause and restart. Afterwards the node is paused as a whole, runs, or is stopped by a
// restart, and repair or the keeper has brought it there.
func TestPauseKilledAtEachStep(t *testing.T) {
	s := newScene(t, onHost)
	for _, command := range []string{"pause", "unpause", "restart"} {
		s.steps(func(n int) bool {
			s.ok("apply", "-f", s.spec)
			args := []string{command, "f1"}
			switch command {
			case "unpause":
				s.ok("pause", "f1")
			case "restart":
				args = append(args, "--grace", "0s")
			}
			what, killed := s.point(n, args...)
			said := s.ok("repair").out
			state := s.settled(what+"\nrepair: "+said, s.states, "up", "down")
			switch now := s.status("f1").State; {
			case command == "restart" && state == "down":
				if said != "nothing to repair\n" && !strings.Contains(said, "interrupted") { // nothing: the keeper was faster
					s.Errorf("%s: repair said %q", what, said)
				}
			case state == "down", command == "pause" && !killed && now != "paused", command == "unpause" && !killed && now != "running":
				s.Errorf("%s: it is %s", what, now)
			case now == "running":
				s.ok("exec", "f1", "--", "/bin/true") // its processes run
			}
			if r := s.berth("rm", "--force", "f1"); r.code != 0 {
				s.Fatalf("%s: then rm: %s", what, r)
			}
			s.settled(what+"\nthen rm", s.states, "none")
			return killed
		})
	}
	text := s.ok("events", "--stream=false").out
	if strings.Count(text, " created\n") != strings.Count(text, " removed\n") {
		s.Errorf("created and removed are not told alike:\n%s", text)
	}
}
