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
	if out := jobs("once"); !strings.Contains(out, "cannot access") {
		t.Errorf("a job on a node of its own finds %q", out)
	}
	if made := strings.Count(s.log(), "msg=resume"); made != 3 {
		t.Errorf("%d nodes were made, not 3", made)
	}
}
