package slurm

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// TestDeaf: a slot that was given back, by the agent or by an admin, gets jobs also after slurmctld was started again. slurmctld waits for an answer
// of a node with State=RESUME, asks none that is powered down, and gives one for which it waits no job once it has read its state anew.
func TestDeaf(t *testing.T) {
	s := newSite(t, 1)
	state := func() string { return s.run("scontrol", "--oneliner", "show", "node", "st01-01") }
	idle := func() bool {
		now := state()
		return strings.Contains(now, "State=IDLE+CLOUD+POWERED_DOWN ") && !strings.Contains(now, "NOT_RESPONDING")
	}
	for _, c := range []struct {
		reason string
		admin  bool // true: an admin gives it back; false: the agent
	}{{"berth: a test", false}, {"a new disk", true}} {
		s.run("scontrol", "update", "NodeName=st01-01", "State=DOWN", "Reason="+c.reason)
		if c.admin {
			s.run("scontrol", "update", "NodeName=st01-01", "State=RESUME")
			if !strings.Contains(state(), "NOT_RESPONDING") {
				t.Errorf("this slurmctld does not wait for it: %s", state())
			}
		}
		s.end("slurmctld", unix.SIGTERM)
		s.startSlurm()
		s.until("the slot is given back, and Slurm waits for no answer", idle)
		s.end("slurmctld", unix.SIGTERM)
		s.startSlurm()
		s.completed(s.submit("echo ran\n"))
		s.until("the node is removed", func() bool { return len(s.nodes()) == 0 && idle() })
	}
}

// TestIdle: a slot whose node did not respond when its job had completed gets jobs again. slurmctld does not count it as idle, and shows it as idle once it
// is powered down.
func TestIdle(t *testing.T) {
	needs(t)
	s := (&site{T: t, slots: 1, hasty: true}).begin("st01")
	s.write("conf/node/epilog", "#!/bin/sh\nsleep 4\n", 0o755)
	text, err := os.ReadFile(s.path("conf/node/slurm.conf"))
	testkit.Must(t, err)
	s.write("conf/node/slurm.conf", string(text)+"Epilog=/etc/slurm/epilog\n", 0o644)
	state := func() string { return s.run("scontrol", "--oneliner", "show", "node", "st01-01") }
	id := s.submit("echo ran\n")
	s.until("the job is completing", func() bool { return s.job(id, "JobState") == "COMPLETING" })
	slurmd := s.slurmd("st01-01")
	if slurmd == 0 {
		t.Fatal("the node's slurmd is not found")
	}
	s.until("the job has completed", func() bool {
		s.run("scontrol", "update", "NodeName=st01-01", "State=NORESP") // it answers in between
		return s.job(id, "JobState") == "COMPLETED"
	})
	testkit.Must(t, unix.Kill(slurmd, unix.SIGSTOP)) // and no more
	s.until("the node is powered down", func() bool { return strings.Contains(state(), "State=IDLE+CLOUD+POWERED_DOWN ") })
	s.completed(s.submit("echo ran\n"))
}
