package sync

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"berth/internal/sys/proc"
	"berth/test/built"
	"berth/test/testkit"
)

// atGate is Samba without a word of Berth in its file.
func atGate() fileServer {
	p := samba
	p.gate = true
	p.start = func(s *site) *exec.Cmd { return smbd(s, "") }
	return p
}

// TestGate: processes of a server that knows nothing of Berth are in the node's group before they do anything for it; an agent that is
// killed while one is stopped leaves it running, and the next one finds processes that came meanwhile.
func TestGate(t *testing.T) {
	p := atGate()
	s, server := serves(t, p, "198.51.105")
	s.end(s.agent, syscall.SIGTERM)
	if m := regexp.MustCompile(`the gate is closed.*`).FindString(s.said.String()); m == "" {
		t.Error("the gate did not say how long processes were stopped")
	} else {
		t.Log(m)
	}
	s.nothingOfGate()

	// The agent is killed while a process is stopped.
	if err := built.Agent(t.Context(), s.dir, "berthfault"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BERTH_FAULT_STOP", "process of a file server stopped")
	s.start()
	s.eventually("the gate is there, and knows nodes", 10*time.Second, func() bool { _, knows := gate(); return knows })
	s.cold("short")
	client := s.client("fast", p.read(s, "short")...)
	var stopped int
	s.eventually("a process is stopped", 10*time.Second, func() bool {
		stopped = s.stopped(server.Process.Pid)
		return stopped > 0
	})
	time.Sleep(100 * time.Millisecond)
	if s.stopped(server.Process.Pid) != stopped {
		t.Fatal("it is not stopped any more, and nobody continued it")
	}
	if out := s.berth("sync", "ls"); strings.Contains(out, "berthd does not run") {
		t.Errorf("berth sync ls says:\n%s", out)
	}
	s.end(s.agent, syscall.SIGKILL)
	t.Logf("a process that was stopped when the agent was killed ran after %v", s.eventually("it runs again", time.Second, func() bool {
		return s.stopped(server.Process.Pid) == 0
	}))
	if err := <-client; err != nil {
		t.Errorf("its client: %v", err)
	}
	s.eventually("nothing of the gate is left", 5*time.Second, func() bool { return s.gateLeft() == "" })
	if out := s.berth("sync", "ls"); !strings.Contains(out, "berthd does not run") {
		t.Errorf("berth sync ls says:\n%s", out)
	}

	// A client that connects while there is no agent is found by the next one.
	client = s.client("fast", "sh", "-c", `{ echo 'get short /tmp/got'; until [ -e /tmp/got ]; do sleep 0.05; done; while [ -e /tmp/got ]; do sleep 0.05; done
		echo 'get short /dev/null'; } | smbclient -N -s /dev/null -E //`+s.net+".1/data")
	s.eventually("it has connected", 10*time.Second, func() bool {
		return exec.Command(s.dir+"/berth", "--root", s.root, "exec", "fast", "--", "test", "-e", "/tmp/got").Run() == nil
	})
	if in := s.members("fast"); len(in) > 0 {
		t.Errorf("processes %v are in the group while there is no agent", in)
	}
	t.Setenv("BERTH_FAULT_STOP", "")
	s.start()
	s.eventually("the gate is there, and knows nodes", 10*time.Second, func() bool { _, knows := gate(); return knows })
	found := s.audit("shared")
	s.cold("short")
	s.berth("exec", "fast", "--", "rm", "/tmp/got")
	if err := <-client; err != nil {
		t.Errorf("a client that connected while there was no agent: %v", err)
	}
	if own := clean(t, found(), "fast"); own == 0 {
		t.Error("a process that came while there was no agent is not in the group")
	}
	if err := server.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error(err)
	}
	if at, err := os.ReadFile("/proc/" + strconv.Itoa(server.Process.Pid) + "/cgroup"); err != nil || strings.Contains(string(at), ".sync/") {
		t.Errorf("the listener is in\n%s", at)
	}
	s.end(s.agent, syscall.SIGTERM)
	s.nothingOfGate()
}

// TestGateSeveral: a process that serves two nodes is in the group of neither, and that is said.
func TestGateSeveral(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: a server with a thread a client")
	}
	s := newSite(t, "198.51.106")
	s.configure("filesystems: [{name: shared, path: " + s.served + ", server: other, way: gate, port: 8123}]\n")
	s.start()
	s.node("one", 2, "io: [{name: s, filesystem: shared}]\n")
	s.node("two", 3, "io: [{name: s, filesystem: shared}]\n")
	server := exec.Command("python3", "-m", "http.server", "--bind", s.net+".1", "--directory", s.served, "8123")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if server.ProcessState == nil {
			s.end(server, syscall.SIGKILL)
		}
	})
	ask := func(node string) {
		s.berth("exec", node, "--", "bash", "-c", "until exec 3<>/dev/tcp/"+s.net+".1/8123; do sleep 0.1; done; printf 'GET / HTTP/1.0\r\n\r\n' >&3; grep -q Directory <&3")
	}
	s.eventually("the addresses are told", 5*time.Second, func() bool {
		_, err := os.Lstat(filepath.Join(s.layout.Run, "sync", "shared", "addresses", s.net+".3"))
		return err == nil
	})
	ask("one")
	if in := s.members("one"); len(in) != 1 || in[0] != strconv.Itoa(server.Process.Pid) {
		t.Errorf("in the group of one are %v", in)
	}
	ask("two")
	s.eventually("it is said", 2*time.Second, func() bool {
		h, _ := s.held("two")
		return strings.Contains(h.Missing, "(python3) serves nodes one and two at port 8123")
	})
	if in := append(s.members("one"), s.members("two")...); len(in) > 0 {
		t.Errorf("%v are in groups of nodes", in)
	}
	s.end(server, syscall.SIGKILL)
	s.eventually("nobody says so after its end", time.Second, func() bool { h, _ := s.held("two"); return !strings.Contains(h.Missing, "python3") })
}

// client runs a program in a node, and says how it ended.
func (s *site) client(node string, args ...string) <-chan error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testkit.Bound())
	c := exec.CommandContext(ctx, s.dir+"/berth", append([]string{"--root", s.root, "exec", node, "--"}, args...)...)
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { defer cancel(); ended <- c.Wait() }()
	return ended
}

// stopped finds a stopped child of the server; 0 if there is none.
func (s *site) stopped(parent int) int {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if p, err := proc.Read(pid); err == nil && p.Parent == parent && p.State == 'T' {
			return pid
		}
	}
	return 0
}

// members are the processes in a node's group.
func (s *site) members(node string) []string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.group(node), "cgroup.procs"))
	if err != nil {
		s.t.Error(err)
	}
	return strings.Fields(string(text))
}

func (s *site) nothingOfGate() {
	s.t.Helper()
	if left := s.gateLeft(); left != "" {
		s.t.Errorf("after the agent's end there is %s", left)
	}
}

// gate returns the name of the program of this site's gate, "" if there is none, and whether it knows addresses of nodes.
func gate() (name string, knows bool) {
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if err != nil {
			return "", false
		}
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has gone
		}
		info, err := p.Info()
		_ = p.Close()
		if err != nil || info.Name != "gate_receive" && info.Name != "gate_tcp" {
			continue
		}
		if port, knows := looksAt(info); port == 445 { // other tests have gates at others
			return info.Name, knows
		}
	}
}

// looksAt is the port that a gate's program looks at, and whether it knows addresses.
func looksAt(p *ebpf.ProgramInfo) (port uint64, knows bool) {
	ids, _ := p.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue // it has gone
		}
		switch info, err := m.Info(); {
		case err != nil:
		case info.Name == "numbers":
			_ = m.Lookup(uint32(0), &port) // of another layout: 0
		case info.Name == "addresses":
			key, err := m.NextKeyBytes(nil)
			knows = err == nil && key != nil
		}
		_ = m.Close()
	}
	return port, knows
}

// gateLeft names what a gate left: a program in the kernel, or a guard.
func (s *site) gateLeft() string {
	s.t.Helper()
	if name, _ := gate(); name != "" {
		return "the program " + name
	}
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		if text, _ := os.ReadFile(file); string(text) == s.dir+"/berth-sync\x00guard\x00" {
			return "a guard: " + file
		}
	}
	return ""
}
