package fault

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"berth/test/sample"
	"berth/test/testkit"
)

// TestHealthKilledAtEachStep kills the keeper from the moment in which it notes that a node is unhealthy until the node's end is
// noted. The next keeper tells what was not told, and ends and starts the node.
func TestHealthKilledAtEachStep(t *testing.T) {
	s := newScene(t, onHost)
	text, err := os.ReadFile(s.spec)
	testkit.Must(s, err)
	spec := s.file("unhealthy.yaml", string(text)+"restart: always\nhealth: {command: [/bin/false], every: 1s, retries: 1, restart: true}\n")
	again := func() bool { return s.status("f1").Restarts > 0 }
	// life starts the node and kills the keeper at its n-th point, if any.
	life := func(n int) (passed []string) {
		s.endKeeper()
		_ = os.Remove(s.dir + "/keeper-faults")
		s.ok("repair")
		r := s.begin([]string{fmt.Sprint("BERTH_FAULT_KEEPER=", n), "BERTH_FAULT_KEEPER_LOG=" + s.dir + "/keeper-faults"}, "apply", "-f", spec).wait()
		if r.code != 0 {
			s.Fatalf("apply: %s", r)
		}
		if !testkit.Happens(func() bool { return s.keeperPid() == 0 || again() }) {
			s.Fatalf("the keeper is neither killed nor ends the node: %+v", s.status("f1"))
		}
		what := "the keeper killed at " + s.lastOfKeeper()
		s.ok("repair")
		if !testkit.Happens(again) {
			s.Fatalf("%s: the node is not started again: %+v", what, s.status("f1"))
		}
		passed = s.passedByKeeper()
		s.ok("rm", "--force", "f1")
		s.ok("repair")
		s.settled(what+"\nthen rm", s.states, "none")
		s.told(what)
		return passed
	}
	all := life(0)
	named := func(from int, name string) int {
		i := slices.IndexFunc(all[from:], func(p string) bool { return strings.HasSuffix(p, " "+name) })
		if i < 0 {
			s.Fatalf("the keeper does not pass %q:\n%s", name, strings.Join(all, "\n"))
		}
		return from + i
	}
	first := named(named(0, "health noted")+1, "health noted") // the first one is of a node that starts
	last := named(named(first, "unhealthy noted"), "end noted")
	n, stride := sample.Of(t).Points(first + 1)
	for n = min(n, last+1); n <= last+1; n += stride {
		life(n)
	}
}

// told checks the events of the node's last life: it is told to be unhealthy once before each of its ends but that by rm.
func (s *scene) told(what string) {
	s.Helper()
	text := s.ok("events", "--stream=false", "f1").out
	text = text[strings.LastIndex(text, " f1 created\n"):]
	var kinds []string
	for line := range strings.Lines(text) {
		_, kind, _ := strings.Cut(line, " f1 ")
		kind, _, _ = strings.Cut(strings.TrimSpace(kind), " ")
		kinds = append(kinds, kind)
	}
	got := strings.Join(kinds, " ")
	rest := strings.TrimPrefix(got, "created started unhealthy ended ")
	for strings.HasPrefix(rest, "started unhealthy ended ") {
		rest = strings.TrimPrefix(rest, "started unhealthy ended ")
	}
	if !slices.Contains([]string{"started ended removed", "started unhealthy ended removed", "started removed", "removed"}, rest) {
		s.Errorf("%s: the events are %s", what, got)
	}
}
