package slurm

import (
	"slices"
	"strings"
	"testing"
)

// TestSuspendIsWhole: when slurm-suspend has returned, nothing of the nodes is left. Nobody waits for what goes later: Slurm may want nodes of the same names at once.
func TestSuspendIsWhole(t *testing.T) {
	t.Parallel() // it mostly waits for nodes
	s := newSite(t, 3)
	s.write("conf/node/node", "exec sleep 1000\n", 0o644) // what nodes run does not matter: Slurm is not asked
	const list = "st01-[01-03]"
	s.until("the agent has listed the site's hosts", func() bool { _, err := s.program("resume", list); return err == nil })
	must := func(what string) {
		t.Helper()
		if out, err := s.program(what, list); err != nil {
			t.Fatalf("slurm-%s: %v: %s%s", what, err, out, s.log())
		}
	}
	must("suspend")
	before := s.traces()
	for range 2 {
		must("resume")
		if up := s.traces(); len(up) < len(before)+3*4 { // of each node at least a mount, a link, a cgroup and a file
			t.Fatalf("three nodes are up, and all that is there is\n%s", strings.Join(up, "\n"))
		}
		must("suspend")
		if now := s.traces(); !slices.Equal(now, before) {
			t.Fatalf("at once after slurm-suspend there is\n%s\nand before the nodes there was\n%s", strings.Join(now, "\n"), strings.Join(before, "\n"))
		}
		must("suspend") // of what is not there
	}
}
