package slurm

import (
	"strings"
	"testing"
	"time"
)

// TestAdminsNodes: nodes that an admin drained or took down are removed when they are idle, and stay out of service.
func TestAdminsNodes(t *testing.T) {
	t.Parallel() // it mostly waits for Slurm
	s := newSite(t, 2)
	for range 2 { // both run until both nodes were seen
		s.submit("until [ -e go ]; do sleep 0.1; done\n")
	}
	s.until("both nodes are up", func() bool { return len(s.nodes()) == 2 && len(s.took("prolog")) == 2 })
	s.run("scontrol", "update", "NodeName=st01-01", "State=DRAIN", "Reason=new disk")
	s.write("work/go", "", 0o644)
	s.until("no job runs", func() bool { return s.run("squeue", "-h") == "" })
	s.run("scontrol", "update", "NodeName=st01-02", "State=DOWN", "Reason=smoke")
	s.until("the nodes are removed", func() bool { return len(s.nodes()) == 0 })
	s.until("slurmctld says so", func() bool { return !strings.Contains(s.run("scontrol", "show", "nodes"), "POWERING_DOWN") })
	time.Sleep(12 * time.Second) // the reconciler looks twice
	for node, state := range map[string]string{"st01-01": "+DRAIN", "st01-02": "State=DOWN"} {
		if text := s.run("scontrol", "show", "node", node); !strings.Contains(text, state) {
			t.Errorf("%s has no %s any more:\n%s", node, state, text)
		}
	}
}
