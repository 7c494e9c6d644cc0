package sync

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/sys/proc"
	"berth/test/testkit"
)

// instance returns the process of a node's own server, and how much memory it has to itself; 0 if there is none.
func (s *site) instance(node string) (pid int, private string) {
	text, _ := os.ReadFile(filepath.Join(s.group(node), "cgroup.procs"))
	for line := range strings.Lines(string(text)) {
		n, _ := strconv.Atoi(strings.TrimSpace(line))
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", n))
		if strings.TrimSpace(string(name)) == "xrootd" {
			pid = n
		}
	}
	memory, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.Lines(string(memory)) {
		if strings.HasPrefix(line, "Rss:") || strings.HasPrefix(line, "Private_Dirty:") {
			private += strings.Join(strings.Fields(line), " ") + " "
		}
	}
	return pid, private
}

// alive reports whether a process runs; one that nobody waited for does not.
func alive(pid int) bool {
	id, err := proc.Of(pid)
	return err == nil && id.Alive()
}

// connections counts what a node has open to the server's port, as the network namespace of a process has it.
func (s *site) connections(pid, last int) (n int) {
	var a, b, c int
	_, _ = fmt.Sscanf(s.net, "%d.%d.%d", &a, &b, &c)
	peer := fmt.Sprintf("%02X%02X%02X%02X:", last, c, b, a)
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp6", pid))
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], ":0446") && strings.Contains(f[2], peer) && f[3] == "01" {
			n++
		}
	}
	return n
}

// inForce says that berth sync ls shows a node's limits in force.
func (s *site) inForce(node string) func() bool {
	return func() bool {
		h, ok := s.held(node)
		return ok && h.Failed == "" && h.Way == "instances" && !strings.Contains(h.Missing, "steered")
	}
}

// pins are the files of the programs of BPF, and their mounts.
func (s *site) pins() string {
	at, _ := filepath.Glob("/sys/fs/bpf/" + strings.ReplaceAll(s.layout.CgroupParent(), ".", "-") + "-sync*")
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, s.root) {
			at = append(at, line)
		}
	}
	return strings.Join(at, " ")
}

// instancesIn are the keys of berthd's file by which each node has an XRootD of its own, in a network namespace.
func (s *site) instancesIn(namespace string) string {
	s.t.Helper()
	conf := s.write("instances.cf", fmt.Sprintf("all.export /\noss.localroot %s\nset dir = $BERTH_DIR\nall.adminpath $dir\nall.pidpath $dir\n", s.served))
	program, err := exec.LookPath("xrootd")
	testkit.Must(s.t, err)
	return fmt.Sprintf(", namespace: %s, command: [%s, -c, %s, -n, '{node}', -p, '{port}']", namespace, program, conf)
}

// processes are those of instances that run.
func (s *site) processes() (all string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, _ := os.ReadFile(f) // one that has ended has none
		if line := strings.ReplaceAll(string(text), "\x00", " "); strings.Contains(line, s.dir+"/instances.cf") {
			all += filepath.Base(filepath.Dir(f)) + " " + line
		}
	}
	return all
}

// copies has a node read a whole file cold, with more words for xrdcp, and returns bytes a second.
func (s *site) copies(node, file string, size int64, more ...string) float64 {
	s.t.Helper()
	s.cold(file)
	words := append([]string{"exec", node, "--", "xrdcp", "--nopbar", "--force"}, more...)
	return s.paced(node, "read", size, func() { s.berth(append(words, "root://"+s.net+".1:1094//"+file, "/dev/null")...) })
}

// TestInstances: a node's new connections go to a server of its own, which was started in its group: parallel streams are held too. It
// is refused while that one does not run. It outlives the agent, and nothing of it stays.
func TestInstances(t *testing.T) {
	p := xrootd
	p.alone, p.instances = true, true
	s, server := serves(t, p, "198.51.109")
	slow, short := sized(80<<20), int64(1<<20)
	began := time.Now()
	s.node("slow", 2, "io: [{name: s, filesystem: shared, read: {rate: "+mb(10)+"}}]\n")
	s.eventually("the instance of slow listens", 10*time.Second, s.inForce("slow"))
	up := time.Since(began)
	s.node("other", 4, "")
	pid, memory := s.instance("slow")
	t.Logf("%v after berth apply began, the instance of slow listened, as process %d with %s", up.Round(time.Millisecond), pid, memory)
	if pid == 0 || s.limit("slow") != scaled[uint64](asked) {
		t.Fatalf("process %d is the instance of slow, whose group may read %d bytes a second", pid, s.limit("slow"))
	}
	if st, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil || st.Sys().(*syscall.Stat_t).Uid == 0 {
		t.Errorf("the instance of slow runs as root: %v", err)
	}

	found := s.audit("shared")
	done := make(chan float64, 1)
	check := func(rate float64, how string) {
		t.Helper()
		holds(t, rate, how)
	}
	go func() { done <- s.copies("slow", "slow", slow, "-S", "4") }()
	s.eventually("there are streams beside the first", 5*time.Second, func() bool { return s.connections(pid, 2) > 2 })
	streams := s.connections(pid, 2)
	check(<-done, fmt.Sprintf("over %d connections", streams))
	if own := clean(t, found(), "slow"); own < slow { // more is read ahead
		t.Errorf("slow read %d bytes, the audit saw %d", slow, own)
	}
	_, memory = s.instance("slow")
	t.Logf("the instance of slow has %s now", memory)
	// An address that is no node's of this file system is served by the main server.
	before := s.counted("slow") + s.counted("fast")
	s.copies("other", "short", short)
	if after := s.counted("slow") + s.counted("fast"); after != before {
		t.Errorf("what other read was charged to nodes: %d bytes", after-before)
	}
	// Nobody gets into the instance of another node: by its port a node reaches its own one, and others none.
	port := s.run("sh", "-c", "tr '\\0' '\\n' < /proc/$0/environ | sed -n s/^BERTH_PORT=//p", strconv.Itoa(pid))
	at := "root://" + s.net + ".1:" + strings.TrimSpace(port) + "//short"
	connects := func(node, port string) bool {
		return exec.Command(s.dir+"/berth", "--root", s.root, "exec", node, "--", "python3", "-c",
			"import socket; socket.create_connection(('"+s.net+".1', "+port+"), 2)").Run() == nil
	}
	if connects("other", strings.TrimSpace(port)) {
		t.Error("an address that is no node's reaches the port of an instance")
	}
	before = s.counted("slow")
	s.cold("short")
	s.berth("exec", "fast", "--", "xrdcp", "--nopbar", "--force", at, "/dev/null")
	if after := s.counted("slow"); after != before {
		t.Errorf("fast read %d bytes by the instance of slow", after-before)
	}

	// The instance is killed: it is told, the node is refused, and another one comes.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is told", time.Second, func() bool {
		h, _ := s.held("slow")
		return strings.Contains(h.Failed, "its instance does not run: it ended: signal: killed")
	})
	if !emulated && connects("slow", "1094") { // in the lab a client begins when the next instance is there
		t.Error("slow is served while its instance does not run")
	}
	took := s.eventually("another one listens", 10*time.Second, s.inForce("slow"))
	t.Logf("another instance listened %v after it was told", took.Round(time.Millisecond))
	found = s.audit("shared") // what waits in a group while an instance starts is no peer's
	check(s.copies("slow", "slow", slow), "by the next instance")

	// The agent is killed: instances go on, also with the next agent.
	pid, _ = s.instance("slow")
	s.end(s.agent, syscall.SIGKILL)
	check(s.copies("slow", "slow", slow), "without an agent")
	s.start()
	s.eventually("the next agent has it", 5*time.Second, s.inForce("slow"))
	if now, _ := s.instance("slow"); now != pid {
		t.Errorf("the instance of slow was process %d, and is %d under the next agent", pid, now)
	}
	check(s.copies("slow", "slow", slow), "with the next agent")
	s.berth("set", "slow", "io.s.read.rate="+mb(20))
	s.eventually("the new rate is in force", time.Second, func() bool { return s.limit("slow") == scaled[uint64](2*asked) })
	if own := clean(t, found(), "slow"); own < 3*slow {
		t.Errorf("slow read %d bytes, the audit saw %d", 3*slow, own)
	}
	s.end(s.agent, syscall.SIGKILL) // an instance that ends without an agent: refused, told, and another one with the next agent
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is told", time.Second, func() bool { h, _ := s.held("slow"); return strings.Contains(h.Failed, "its instance ended") })
	if connects("slow", "1094") {
		t.Error("slow is served while its instance does not run, without an agent")
	}
	s.start()
	s.eventually("another one listens", 10*time.Second, s.inForce("slow"))
	// In place of an instance that an agent could not record any more, the next agent starts another.
	s.end(s.agent, syscall.SIGKILL)
	lost, _ := s.instance("slow")
	if err := os.Remove(filepath.Join(s.layout.Run, "sync/shared/nodes/slow.json")); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.eventually("another one listens", 10*time.Second, func() bool { return s.inForce("slow")() && !alive(lost) })

	// A node goes: its instance ends, the server goes on, and others of its address are served by it.
	pid, _ = s.instance("slow")
	s.berth("rm", "--force", "slow")
	s.eventually("the instance is gone with its group", 8*time.Second, func() bool {
		_, err := os.Stat(s.group("slow"))
		return err != nil && !alive(pid)
	})
	s.node("late", 2, "")
	s.copies("late", "short", short)
	if err := server.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error(err)
	}

	// The host leaves: nothing stays.
	pid, _ = s.instance("fast")
	s.berth("rm", "--force", "other")
	s.berth("rm", "--force", "late")
	s.end(s.agent, syscall.SIGKILL)
	if pid == 0 || s.pins() == "" {
		t.Errorf("before the host leaves: process %d, pins %q", pid, s.pins())
	}
	s.berth("rm", "--force", "fast")
	s.leave()
	s.eventually("the instance is gone", time.Second, func() bool { return !alive(pid) })
	if left := s.pins(); left != "" {
		t.Errorf("pins are left: %s", left)
	}
	if left := s.run("ls", s.root+"/run/sync") + s.processes(); left != "" {
		t.Errorf("left: %s", left)
	}
}
