package slurm

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/testkit"
)

// TestWarm: with warm: 1 a node is made before any job asks for it, and stays when nothing runs on it; a job starts on it at once, with its own limits,
// and another node comes to wait in its place.
func TestWarm(t *testing.T) {
	s := newSite(t, 2)
	cold := s.firstLine()
	s.until("the node is removed", func() bool { return len(s.nodes()) == 0 })
	s.add(s.path("conf/slurm.conf"), "SuspendExcNodes=st01-[01-02]:1\n") // as berth slurm config writes it
	s.run("scontrol", "reconfigure")
	s.add(s.layout.Etc("slurm.yaml"), "warm: 1\n")
	states := func() []string { return strings.Fields(s.run("sinfo", "-h", "-N", "-o", "%T")) }
	waits := func() bool { return len(s.nodes()) == 1 && slices.Contains(states(), "idle") } // idle~ is not there, idle# is on its way
	s.until("a node waits that no job has asked for", waits)
	first := s.nodes()[0]
	time.Sleep(8 * time.Second) // SuspendTime is 3 s, and slurmctld looks each second
	if !waits() || s.nodes()[0] != first {
		t.Fatalf("%s does not stay: %s %s", first, s.nodes(), states())
	}
	id := s.submit("until [ -e go ]; do sleep 0.1; done\n", "--comment=berth: memory.max=256MiB")
	s.until("the job runs", func() bool { return s.job(id, "JobState") == "RUNNING" })
	if got := s.limits(first)["memory.max"]; got != "256MiB" || s.job(id, "NodeList") != first {
		t.Errorf("the job is on %s, and %s has memory.max %s", s.job(id, "NodeList"), first, got)
	}
	s.until("another node waits", func() bool { return len(s.nodes()) == 2 && slices.Contains(states(), "idle") })
	s.write("work/go", "", 0o644)
	s.completed(id)
	s.until("one of them is removed", func() bool { return len(s.nodes()) == 1 })
	warm := s.firstLine()
	t.Logf("from submission to the job's first line: %s on a new node, %s on one that waited", cold.Round(10*time.Millisecond), warm.Round(10*time.Millisecond))
}

// add adds text to a file.
func (s *site) add(path, text string) {
	s.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	testkit.Must(s, err)
	_, err = f.WriteString(text)
	testkit.Must(s, err)
	testkit.Must(s, f.Close())
}

// firstLine runs a job, and returns how long after its submission it wrote its first line.
func (s *site) firstLine() time.Duration {
	s.Helper()
	began := time.Now()
	id := s.submit("date +%s.%N\n")
	s.completed(id)
	text, err := os.ReadFile(s.path("work/" + id + ".out"))
	testkit.Must(s, err)
	at, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	testkit.Must(s, err)
	return time.Unix(0, int64(at*1e9)).Sub(began)
}

// read returns the text of a file of the cluster; "" if there is none.
func (s *site) read(name string) string {
	text, _ := os.ReadFile(s.path(name))
	return string(text)
}
