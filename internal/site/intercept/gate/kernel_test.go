package gate

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fork"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestMain is also the guard, and the programs of servers.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == GuardCommand {
		if err := Guard(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		serveOne()
	}
	os.Exit(m.Run())
}

// serveOne is a process that got connections from its parent, a listener: it says what it receives.
func serveOne() {
	for fd := uintptr(3); fd < 5; fd++ {
		c, err := net.FileConn(os.NewFile(fd, "connection"))
		if err != nil {
			continue // there is only one
		}
		go func() {
			all := bufio.NewScanner(c)
			for all.Scan() {
				fmt.Println(all.Text())
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	os.Exit(0)
}

func state(t *testing.T, pid int) byte {
	t.Helper()
	s, err := proc.Read(pid)
	if err != nil {
		t.Fatal(err)
	}
	return s.State
}

// halted starts a process that somebody stopped.
func halted(t *testing.T) proc.ID {
	t.Helper()
	c := exec.Command("sleep", "100")
	if err := fork.Start(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = fork.Wait(c) })
	testkit.Eventually(t, "sleep runs", func() bool { return state(t, c.Process.Pid) == 'S' })
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is stopped", func() bool { return state(t, c.Process.Pid) == 'T' })
	id, err := proc.Of(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// groups notes what it is asked for, and asks what a process did meanwhile.
type groups struct {
	mu     sync.Mutex
	log    []string
	during func(pid int) error
}

func (g *groups) say(format string, a ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log = append(g.log, fmt.Sprintf(format, a...))
}

func (g *groups) said() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.log, "; ")
}

func (g *groups) Put(node string, pid int) error {
	g.say("put %d into %s", pid, node)
	g.mu.Lock()
	during := g.during
	g.mu.Unlock()
	if during != nil {
		return during(pid)
	}
	return nil
}

// when sets what happens while a process is put into a group.
func (g *groups) when(during func(pid int) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.during = during
}

func (g *groups) Back(node string, pid int) error { g.say("back %d from %s", pid, node); return nil }

func (g *groups) Wrong(pid int, what string) {
	if what == "" {
		g.say("right %d", pid)
		return
	}
	g.say("wrong %d", pid)
}

// server is a listener, and the clients of its processes.
type server struct {
	t        *testing.T
	listener *net.TCPListener
	port     int
	groups   *groups
	gate     *Gate
	woken    chan struct{} // has room for one
}

func newServer(t *testing.T) *server {
	t.Helper()
	testkit.NeedsRoot(t)
	if err := onHost(); err != nil {
		t.Skipf("needs the host: %v", err)
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skip("needs a kernel with BTF: there is no /sys/kernel/btf/vmlinux")
	}
	l, err := net.Listen("tcp", ":0") // IPv6: the peers of IPv4 are mapped
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s := &server{t: t, listener: l.(*net.TCPListener), port: l.Addr().(*net.TCPAddr).Port, groups: &groups{}, woken: make(chan struct{}, 1)}
	return s
}

// open opens the gate, for the nodes a and b.
func (s *server) open() {
	s.t.Helper()
	if err := s.openBy(programs()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) openBy(of []program) error {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	s.gate, err = open(Server{Port: s.port, Dir: s.t.TempDir(), Guard: self, Groups: s.groups, Wake: s.wake, Log: slog.New(slog.DiscardHandler)}, of)
	if err == nil {
		s.tell()
	}
	return err
}

func (s *server) wake() { s.woken <- struct{}{} }

// lost waits until the gate says that it is lost.
func (s *server) lost(why string) {
	s.t.Helper()
	select {
	case <-s.woken:
	case <-time.After(testkit.Bound()):
		s.t.Fatal("nobody is woken")
	}
	if err := s.gate.Tell(nil); err == nil || !strings.Contains(err.Error(), why) {
		s.t.Errorf("it says %v", err)
	}
	testkit.Eventually(s.t, "it is told", func() bool { return strings.Contains(s.groups.said(), "wrong 0") })
}

func (s *server) tell() {
	s.t.Helper()
	if err := s.gate.Tell(map[netip.Addr]string{netip.MustParseAddr("127.0.0.2"): "a", netip.MustParseAddr("127.0.0.3"): "b", netip.MustParseAddr("fe80::1"): "b"}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) close() {
	s.t.Helper()
	if err := s.gate.Close(); err != nil {
		s.t.Error(err)
	}
}

// client is one that has a process of the server's.
type client struct {
	t    *testing.T
	to   []net.Conn
	pid  int
	says *bufio.Reader
}

// connect connects from addresses to one new process.
func (s *server) connect(from ...string) *client {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(self, "serve")
	c := &client{t: s.t}
	for _, a := range from {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(a)}}
		server := "127.0.0.1"
		if d.LocalAddr.(*net.TCPAddr).IP.To4() == nil {
			server = "::1"
		}
		to, err := d.DialContext(s.t.Context(), "tcp", net.JoinHostPort(server, strconv.Itoa(s.port)))
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { to.Close() })
		c.to = append(c.to, to)
		accepted, err := s.listener.AcceptTCP()
		if err != nil {
			s.t.Fatal(err)
		}
		f, err := accepted.File()
		if err != nil {
			s.t.Fatal(err)
		}
		defer accepted.Close()
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := fork.Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cmd.Process.Kill(); in.Close(); _ = fork.Wait(cmd) })
	c.pid, c.says = cmd.Process.Pid, bufio.NewReader(out)
	return c
}

func (c *client) send(over int, line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.to[over], line); err != nil {
		c.t.Fatal(err)
	}
}

// ask sends a line and waits until the process did something for it.
func (c *client) ask(over int, line string) {
	c.t.Helper()
	c.send(over, line)
	if got, err := c.says.ReadString('\n'); got != line+"\n" {
		c.t.Fatalf("it says %q, %v", got, err)
	}
}

// TestStops: a process is put into a group before it does anything for the node, once, and those of other clients are not touched.
func TestStops(t *testing.T) {
	s := newServer(t)
	before := s.connect("127.0.0.2") // it received something while there was no gate
	before.ask(0, "early")
	s.open()
	defer s.close()
	c, other := s.connect("127.0.0.2"), s.connect("127.0.0.4", "::1") // fe80::1 of b was not made of a MAC: it stands for itself alone
	s.groups.when(func(pid int) error {
		testkit.Eventually(t, "it is stopped", func() bool { return state(t, pid) == 'T' })
		return nil
	})
	other.ask(0, "nobody")
	other.ask(1, "nobody of IPv6")
	c.ask(0, "one")
	c.ask(0, "two")
	before.ask(0, "late")
	if got, want := s.groups.said(), fmt.Sprintf("put %d into a; put %d into a", c.pid, before.pid); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if err := s.gate.Anew("a"); err != nil {
		t.Fatal(err)
	}
	s.tell()
	c.ask(0, "three")
	if got, want := s.groups.said(), fmt.Sprintf("into a; put %d into a", c.pid); !strings.HasSuffix(got, want) {
		t.Errorf("with a new group: %s, want %s", got, want)
	}
	testkit.Eventually(t, "three stops are counted", func() bool { return s.gate.Stops().Times == 3 })
	t.Logf("%+v", s.gate.Stops())
}

// TestOlderKernel: the program of older kernels does the same. Of a kernel that refuses it that is said, with a remedy.
func TestOlderKernel(t *testing.T) {
	s := newServer(t)
	if err := s.openBy(programs()[1:]); err != nil {
		if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "tcp_recvmsg") {
			t.Errorf("it says %v", err)
		}
		t.Skipf("needs a kernel that takes programs at functions: %v", err)
	}
	defer s.close()
	c := s.connect("127.0.0.2")
	c.ask(0, "one")
	if got, want := s.groups.said(), fmt.Sprintf("put %d into a", c.pid); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestNoGuard: without a guard nothing is stopped.
func TestNoGuard(t *testing.T) {
	s := newServer(t)
	of := Server{Port: s.port, Dir: t.TempDir(), Guard: "/bin/false", Groups: s.groups, Log: slog.New(slog.DiscardHandler)}
	if _, err := Open(of); err == nil || !strings.Contains(err.Error(), "guard") {
		t.Errorf("with a guard that ends it says %v", err)
	}
}

// TestSeveral: a process that serves two nodes is in no group, and that is said once.
func TestSeveral(t *testing.T) {
	s := newServer(t)
	s.open()
	defer s.close()
	c := s.connect("127.0.0.2", "127.0.0.3")
	c.ask(0, "one")
	c.ask(1, "two")
	c.ask(0, "three")
	want := fmt.Sprintf("put %d into a; back %[1]d from a; wrong %[1]d", c.pid)
	testkit.Eventually(t, "it is said", func() bool { return s.groups.said() == want })
}

// TestFails: a process that cannot be put into a group is continued, and stopped again at its next receive.
func TestFails(t *testing.T) {
	s := newServer(t)
	s.open()
	defer s.close()
	s.groups.when(func(int) error { return unix.EBUSY })
	c := s.connect("127.0.0.2")
	c.ask(0, "one")
	testkit.Eventually(t, "it is said", func() bool { return strings.HasSuffix(s.groups.said(), fmt.Sprint("wrong ", c.pid)) })
	s.groups.when(nil)
	c.ask(0, "two")
	testkit.Eventually(t, "it is put there", func() bool {
		return strings.HasSuffix(s.groups.said(), fmt.Sprintf("put %d into a; right %[1]d", c.pid))
	})
}

// TestClose: what is stopped when the gate is closed runs; what somebody else stopped does not.
func TestClose(t *testing.T) {
	s := newServer(t)
	other := halted(t)
	s.open()
	stuck := make(chan struct{})
	s.groups.when(func(int) error { <-stuck; return nil })
	c, d := s.connect("127.0.0.2"), s.connect("127.0.0.3")
	c.send(0, "one")
	d.send(0, "two")
	testkit.Eventually(t, "both are stopped", func() bool { return state(t, c.pid) == 'T' && state(t, d.pid) == 'T' })
	time.AfterFunc(20*time.Millisecond, func() { close(stuck) })
	s.close()
	testkit.Eventually(t, "both run", func() bool { return state(t, c.pid) == 'S' && state(t, d.pid) == 'S' })
	if state(t, other.PID) != 'T' {
		t.Error("a process that somebody else stopped was continued")
	}
}

// TestGuardEnds: a guard that somebody killed is replaced.
func TestGuardEnds(t *testing.T) {
	s := newServer(t)
	s.open()
	defer s.close()
	pid := func() int {
		s.gate.guard.mu.Lock()
		defer s.gate.guard.mu.Unlock()
		return s.gate.guard.cmd.Process.Pid
	}
	was := pid()
	if err := unix.Kill(was, unix.SIGTERM); err != nil { // what it ignores
		t.Fatal(err)
	}
	if err := unix.Kill(was, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "there is another guard", func() bool { return pid() != was })
	s.connect("127.0.0.2").ask(0, "one")
}
