package slurm

import (
	"os"
	"strings"
	"testing"

	"berth/test/testkit"
)

// TestOnce: with once, each job has a node of its own, on which nothing is that another job left. Otherwise a node may have several, one after another.
func TestOnce(t *testing.T) {
	s := newSite(t, 1)
	path := s.layout.Etc("slurm.yaml")
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	jobs := func(what string) string {
		t.Helper()
		var ids []string
		for range 2 {
			ids = append(ids, s.submit("ls /tmp/left; echo x >/tmp/left\n"))
		}
		for _, id := range ids {
			s.completed(id)
		}
		s.until("the node is removed", func() bool { return len(s.nodes()) == 0 })
		if down := s.run("sinfo", "-h", "-R"); down != "" {
			t.Errorf("%s: nodes are out of service: %s", what, down)
		}
		out, err := os.ReadFile(s.path("work/" + ids[1] + ".out"))
		testkit.Must(t, err)
		return string(out)
	}
	if out := jobs("several"); out != "/tmp/left\n" {
		t.Errorf("the second job on a node finds %q", out)
	}
	s.until("the slot is free", func() bool { return strings.TrimSpace(s.run("sinfo", "-h", "-N", "-o", "%T")) == "idle~" })
	testkit.Must(t, os.WriteFile(path, append(text, "once: true\n"...), 0o644))
	s.slow("slurm-epilog") // slurmctld gives a node to the next job while that runs
	if out := jobs("once"); !strings.Contains(out, "cannot access") {
		t.Errorf("a job on a node of its own finds %q", out)
	}
	if made := strings.Count(s.log(), "msg=resume"); made != 3 {
		t.Errorf("%d nodes were made, not 3", made)
	}
}

// slow has a program that slurmctld starts take some time until it begins.
func (s *site) slow(name string) {
	s.Helper()
	text, err := os.ReadFile(s.path("conf/berth.conf"))
	testkit.Must(s, err)
	_, after, found := strings.Cut(string(text), "/"+name+"\n")
	before := strings.TrimSuffix(string(text), "/"+name+"\n"+after)
	folder := before[strings.LastIndexByte(before, '=')+1:]
	if !found || !strings.HasPrefix(folder, s.dir) {
		s.Fatalf("berth.conf has no %s of the test's own: %q", name, folder)
	}
	program := folder + "/" + name
	testkit.Must(s, os.MkdirAll(folder+"/real", 0o755), os.Rename(program, folder+"/real/"+name))
	s.write(strings.TrimPrefix(program, s.dir), "#!/bin/sh\nsleep 5\nexec "+folder+"/real/"+name+" \"$@\"\n", 0o755)
}
