package sync

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/site/intercept/preload"
	"berth/internal/site/iosync/place"
	"berth/test/built"
	"berth/test/testkit"
)

// TestPool: three threads of XRootD serve connections of two nodes that stay open, with gaps in which the threads leave them, and
// connections that are made anew: nothing leaks. Threads that stayed in the group of a node which went while there was no agent are taken
// out of it. A server that is killed is told of, and the next one holds the limits.
func TestPool(t *testing.T) {
	needs(t, append(xrootd.programs, "python3")...)
	mostlyWaits(t)
	s := newSite(t, "198.51.124")
	testkit.Must(t, built.Preload(t.Context(), s.dir))
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: xrootd, user: xrootd}]\n", s.served))
	s.start()
	const size = 16 << 20
	s.file("short", size)
	s.apart()
	limited := func() {
		t.Helper()
		s.node("slow", 2, "io: [{name: s, filesystem: shared, read: {rate: 10MB/s}}]\n")
		s.eventually("the group of slow has its limit", time.Second, func() bool { return s.limit("slow") == asked })
	}
	limited()
	s.node("fast", 3, "io: [{name: s, filesystem: shared}]\n")
	server := s.serving(xrootd)
	connect := func(node string) *load {
		t.Helper()
		l := s.load(node, "1094", 4, size)
		if said := l.line(t); said != "open" {
			t.Fatalf("%s: %s", node, said)
		}
		return l
	}
	// A server that somebody took over tells nobody another address.
	for _, script := range []string{"echo x >generation", "ln -s fast addresses/192.0.2.1", "rm addresses/*", "mv addresses other", "ln -sfn / groups", "rm -r nodes"} {
		c := exec.Command("setpriv", "--reuid", xrootd.user, "--regid", xrootd.user, "--init-groups", "sh", "-c", script)
		c.Dir = place.Dir(s.layout, "shared")
		if out, err := c.CombinedOutput(); err == nil {
			t.Errorf("the server's user may do: %s: %s", script, out)
		}
	}
	moved := func() (n uint64) {
		t.Helper()
		all, err := preload.Servers(place.Dir(s.layout, "shared"))
		testkit.Must(t, err)
		for _, one := range all {
			n += one.Moved
		}
		return n
	}
	// Each of the connections reads in turn, all at once; then nobody does, until no thread waits for its connection any more (1 s).
	round := func(of []*load) {
		t.Helper()
		s.cold("short")
		for _, l := range of {
			_, err := fmt.Fprintln(l.ask, 1094, 0.5, 100)
			testkit.Must(t, err)
		}
		for _, l := range of {
			if got := l.line(t); got == "0" {
				t.Error("a client read nothing")
			}
		}
		s.eventually("the threads leave their connections", 3*time.Second, func() bool { return s.polling(server.Process.Pid) == 0 })
	}
	// rounds are so many in which a thread goes from one node to another, if there are several. Which connection a thread takes is the server's
	// choice: where each stays with its node, there is another round.
	rounds := func(n int, of ...*load) {
		t.Helper()
		for range n {
			before, tries := moved(), 0
			for round(of); len(of) > 1 && moved() == before; round(of) {
				if tries++; tries == 20 {
					t.Error("no thread went from one node to another")
					return
				}
			}
		}
	}
	// judged looks at what was read since found began.
	judged := func(when string) {
		t.Helper()
		all, err := preload.Servers(place.Dir(s.layout, "shared"))
		testkit.Must(t, err)
		if len(all) != 1 || all[0].Moved == 0 || all[0].Failed > 0 {
			t.Errorf("%s: the servers are %+v", when, all)
		}
		if h, ok := s.held("slow"); !ok || h.Failed != "" || strings.Contains(h.Missing, "threads") || strings.Contains(h.Missing, "berth-sync.so") {
			t.Errorf("%s: berth sync ls says %+v", when, h)
		}
	}
	found := s.audit("shared")
	slow, fast := connect("slow"), connect("fast")
	rounds(2, slow, fast)
	testkit.Must(t, slow.ask.Close()) // its connections end
	rounds(1, connect("slow"), fast)
	judged("idle gaps and connections made anew")
	if own := clean(t, found(), "slow"); own == 0 {
		t.Error("slow read nothing from the disk")
	}

	// The node goes while there is no agent: its process 1 is killed, then all of it is removed.
	if len(s.threads("slow")) == 0 {
		t.Fatal("no thread of the server stays in the group of slow")
	}
	s.berth("kill", "--signal", "KILL", "slow")
	if s.limit("slow") != asked {
		t.Error("the limit went with the process of the node")
	}
	s.end(s.agent, syscall.SIGKILL)
	s.berth("rm", "--force", "slow")
	if len(s.threads("slow")) == 0 {
		t.Fatal("without an agent, threads of the server left the group of slow")
	}
	s.start()
	s.eventually("the group of the node that went is gone", 5*time.Second, func() bool { _, err := os.Stat(s.group("slow")); return err != nil })
	if err := server.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the server did not survive that: %v", err)
	}
	rounds(1, connect("fast")) // the server closed those that nobody used for 5 s

	// The server is killed: that is told. Its threads are gone; the next one begins in no node's group.
	limited()
	testkit.Must(t, server.Process.Kill())
	_ = server.Wait()
	told := s.eventually("it is told", 5*time.Second, func() bool {
		h, _ := s.held("slow")
		return strings.Contains(h.Missing, "no server has berth-sync.so loaded")
	})
	t.Logf("told after %v", told.Round(time.Millisecond))
	server = s.serving(xrootd)
	if left := append(s.threads("slow"), s.threads("fast")...); len(left) > 0 {
		t.Errorf("threads %v are in groups of nodes", left)
	}
	rounds(1, connect("slow"), connect("fast"))
	judged("another server")
	clean(t, found(), "slow")
}

// polling is how many threads of a process wait for one of a few descriptors: XRootD's do so for the next request of their connection.
func (s *site) polling(pid int) (n int) {
	s.t.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	testkit.Must(s.t, err)
	for _, at := range all {
		if text, _ := os.ReadFile(at); strings.HasPrefix(string(text), "poll_schedule_timeout") { // fs/select.c: do_poll
			n++
		}
	}
	return n
}

// threads are those in a node's group, on cgroup v1.
func (s *site) threads(node string) []string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.group(node), "tasks"))
	if err != nil {
		s.t.Error(err)
	}
	return strings.Fields(string(text))
}
