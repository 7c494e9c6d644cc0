package slurm

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// TestFailures: when a node cannot be made, the job is queued again and runs in the end, the slot is usable again without anybody's help, and nothing is left.
func TestFailures(t *testing.T) {
	t.Parallel() // it mostly waits for Slurm
	needs(t)
	s := (&site{T: t, slots: 1}).begin("st01")
	s.survives(s.failures()[:1])
}

// TestLateFailures is the same for what else fails, among that what slurmctld only finds out when it has waited.
func TestLateFailures(t *testing.T) {
	needs(t)
	s := (&site{T: t, slots: 1, strict: true, hasty: true}).begin("st01")
	s.survives(s.failures()[1:])
}

func (s *site) survives(all []failure) {
	t := s.T
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			s.T = t
			mend := c.fail()
			id := s.submit("echo ran\n")
			s.until("the node is down", func() bool { return strings.Contains(s.run("sinfo", "-h", "-R", "-o", "%500E"), c.reason) })
			t.Log(s.run("sinfo", "-h", "-R", "-o", "%500E"))
			s.until("the job is queued again", func() bool { return s.job(id, "JobState") == "PENDING" })
			mend()
			s.soon(id)
			s.completed(id)
			s.until("the node is up for no other reason", func() bool { return s.run("sinfo", "-h", "-R") == "" })
			s.until("the node is removed", func() bool { return len(s.nodes()) == 0 })
		})
	}
	s.T = t
}

// failure is something that fails, until it is mended.
type failure struct {
	name   string
	fail   func() (mend func())
	reason string // of the node, while it is down
}

func (s *site) failures() []failure {
	return []failure{
		{"image missing", func() func() { return s.template(s.hosts[0], "image: host", "image: oci:nothing-here") }, "nothing-here"},
		{"less scratch space than slurm.conf says", func() func() { return s.template(s.hosts[0], "size: 64MiB", "size: 16MiB") }, "Low TmpDisk"},
		{"agent down", func() func() {
			s.end("berthd-st01", unix.SIGKILL)
			return func() { s.runAgent(s.hosts[0]) }
		}, "connection refused"},
		{"agent hangs", func() func() {
			agent := s.services["berthd-st01"].Process
			testkit.Must(s, agent.Signal(unix.SIGSTOP))
			return func() { testkit.Must(s, agent.Signal(unix.SIGCONT)) }
		}, "did not answer in time"},
		{"resume killed", func() func() {
			s.write("work/kill.resume", "0.2", 0o666)
			return func() {}
		}, "ResumeTimeout"},
		{"wrong munge key", func() func() {
			path := s.path("conf/node/munge.key")
			text, err := os.ReadFile(path)
			testkit.Must(s, err)
			testkit.Must(s, os.WriteFile(path, []byte(strings.Repeat("another key altogether ", 8)), 0o400))
			return func() { testkit.Must(s, os.WriteFile(path, text, 0o400)) }
		}, "ResumeTimeout"},
	}
}

// template changes the template of a host, until it is mended.
func (s *site) template(h *host, from, to string) (mend func()) {
	s.Helper()
	path := h.layout.Etc("templates/worker.yaml")
	text, err := os.ReadFile(path)
	testkit.Must(s, err)
	if !strings.Contains(string(text), from) {
		s.Fatalf("the template has no %s", from)
	}
	testkit.Must(s, os.WriteFile(path, []byte(strings.Replace(string(text), from, to, 1)), 0o644))
	return func() { testkit.Must(s, os.WriteFile(path, text, 0o644)) }
}

// TestNodeKilled: a node that is killed under its job is told as down; its job is queued again and runs in another one.
func TestNodeKilled(t *testing.T) {
	needs(t)
	s := (&site{T: t, slots: 1, hasty: true}).begin("st01")
	for _, once := range []string{"", "once: true\n"} {
		path := s.layout.Etc("slurm.yaml")
		text, err := os.ReadFile(path)
		testkit.Must(t, err, os.WriteFile(path, append(text, once...), 0o644), os.RemoveAll(s.path("work/ran")))
		id := s.submit("[ -e ran ] && echo again && exit; touch ran; sleep 300\n")
		s.until("the job runs", func() bool { return s.job(id, "JobState") == "RUNNING" })
		s.until("its script does", func() bool { _, err := os.Stat(s.path("work/ran")); return err == nil })
		t.Log(s.run("scontrol", "--oneliner", "show", "node", "st01-01"))
		s.on(s.hosts[0], "rm", "--force", "st01-01")
		s.until("the node is down", func() bool { return strings.Contains(s.run("sinfo", "-h", "-R", "-o", "%500E"), "berth: ") })
		t.Log(s.run("scontrol", "--oneliner", "show", "node", "st01-01"))
		s.until("the job is queued again", func() bool { return s.job(id, "JobState") == "PENDING" })
		s.soon(id)
		s.completed(id)
		s.until("the node is removed", func() bool { return len(s.nodes()) == 0 })
	}
}

// soon lets a job that was queued again start as soon as it can: Slurm has it wait for two minutes.
func (s *site) soon(id string) {
	s.Helper()
	if s.job(id, "JobState") == "PENDING" {
		_, _ = s.try("scontrol", "update", "JobId="+id, "StartTime=now") // it may begin meanwhile
	}
}
