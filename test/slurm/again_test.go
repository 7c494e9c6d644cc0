package slurm

import (
	"strings"
	"testing"
	"time"
)

// TestOnlyWhatWasSeenTwice: a node that Slurm does not know as up is ended by the agent, but not one that was made in the place of the one that it saw.
func TestOnlyWhatWasSeenTwice(t *testing.T) {
	s := newSite(t, 1)
	s.write("conf/node/node", "exec sleep 1000\n", 0o644) // no slurmd: to slurmctld the node stays powered down
	s.until("the agent has joined its site", func() bool { return strings.Contains(s.read("log/berthd-st01"), "the cluster state answers") })
	s.until("the agent has listed the site's hosts", func() bool { _, err := s.program("resume", "st01-01"); return err == nil })
	for range 8 {
		if out, err := s.program("resume", "st01-01"); err != nil {
			t.Fatalf("%v: %s%s", err, out, s.log())
		}
		time.Sleep(2500 * time.Millisecond) // the agent looks each 5 s
	}
	const ended = "end a node that Slurm does not know as up"
	if len(s.nodes()) != 1 || strings.Contains(s.read("log/berthd-st01"), ended) {
		t.Fatalf("nodes %s; the agent: %s", s.nodes(), s.read("log/berthd-st01"))
	}
	s.until("the agent ends the node that stays", func() bool { return len(s.nodes()) == 0 })
	if !strings.Contains(s.read("log/berthd-st01"), ended) {
		t.Errorf("the agent does not say so: %s", s.read("log/berthd-st01"))
	}
}
