package gate

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// TestGuardLost: where no guard can be started, nothing is stopped any more, and the agent is woken to open another gate.
func TestGuardLost(t *testing.T) {
	s := newServer(t)
	s.open()
	defer s.gate.Close()
	s.gate.guard.mu.Lock()
	s.gate.guard.path = "/bin/false"
	was := s.gate.guard.cmd.Process.Pid
	s.gate.guard.mu.Unlock()
	if err := unix.Kill(was, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.lost("guard")
	s.connect("127.0.0.2").ask(0, "one")
	if said := s.groups.said(); strings.Contains(said, "put") {
		t.Errorf("a process was stopped with no guard: %s", said)
	}
}

// TestAttachLost: a gate that is lost before its program is in the kernel does not put it there.
func TestAttachLost(t *testing.T) {
	s := newServer(t)
	s.open()
	defer s.gate.Close()
	s.gate.lose(unix.EAGAIN)
	err := s.gate.attach(programs()[0].name)
	if !errors.Is(err, unix.EAGAIN) {
		t.Skipf("needs a kernel with %s: %v", programs()[0].place, err)
	}
	s.connect("127.0.0.2").ask(0, "one")
	if said := s.groups.said(); strings.Contains(said, "put") {
		t.Errorf("a process was stopped: %s", said)
	}
}

// deaf is a reader that fails.
type deaf struct{}

func (deaf) Read() (ringbuf.Record, error) { return ringbuf.Record{}, unix.EIO }
func (deaf) SetDeadline(time.Time)         {}
func (deaf) Close() error                  { return nil }

// TestDeaf: a gate that hears nothing any more stops nothing, continues what is stopped, and says so.
func TestDeaf(t *testing.T) {
	s := newServer(t)
	s.open()
	_ = s.gate.events.Close()
	<-s.gate.done
	c := s.connect("127.0.0.2")
	c.send(0, "one")
	testkit.Eventually(t, "it is stopped", func() bool { return state(t, c.pid) == 'T' })
	s.gate.events, s.gate.done = deaf{}, make(chan struct{})
	go s.gate.follow()
	s.lost("hears")
	testkit.Eventually(t, "it runs", func() bool { return state(t, c.pid) == 'S' })
	s.connect("127.0.0.2").ask(0, "two")
	_ = s.gate.Close() // its link is closed already
}

// noFiles makes this process open no file until again is called.
func noFiles(t *testing.T) (again func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}
}

// stops says whether a process is stopped, also while this process can open no file.
func stops(t *testing.T, pid int) func() bool {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return func() bool {
		text := make([]byte, 200)
		n, _ := f.ReadAt(text, 0) // of a process that has ended: nothing
		return strings.Contains(string(text[:n]), ") T ")
	}
}

// TestNoFiles: an agent that can open no file does not take a stopped process for one that has ended.
func TestNoFiles(t *testing.T) {
	s := newServer(t)
	s.open()
	c := s.connect("127.0.0.2")
	stopped := stops(t, c.pid)
	again := noFiles(t)
	c.send(0, "one")
	is := testkit.Happens(stopped)
	time.Sleep(200 * time.Millisecond) // in which the agent looks at it in vain
	again()
	if !is {
		t.Fatal("it is not stopped")
	}
	testkit.Eventually(t, "it runs", func() bool { return state(t, c.pid) == 'S' })
	s.close()
	if got, want := s.groups.said(), fmt.Sprintf("put %d into a", c.pid); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestCloseNoFiles: also after a gate was closed in vain what it stopped is continued.
func TestCloseNoFiles(t *testing.T) {
	s := newServer(t)
	s.open()
	c := s.connect("127.0.0.2")
	stopped := stops(t, c.pid)
	again := noFiles(t)
	c.send(0, "one")
	is := testkit.Happens(stopped)
	time.Sleep(50 * time.Millisecond) // in which the agent looks at it in vain
	err := s.gate.Close()
	again()
	if !is {
		t.Fatal("it is not stopped")
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("it is closed with %v", err)
	}
	testkit.Eventually(t, "it runs", func() bool { return state(t, c.pid) == 'S' })
	testkit.Eventually(t, "the guard has ended", func() bool {
		select {
		case <-s.gate.guard.ended:
			return true
		default:
			return false
		}
	})
}

// TestNoted: what is stopped is noted before the process before it has its turn.
func TestNoted(t *testing.T) {
	s := newServer(t)
	s.open()
	defer s.close()
	stuck, left := make(chan struct{}), make(chan int, 3)
	s.groups.when(func(int) error {
		<-stuck
		all, err := os.ReadDir(s.gate.of.Dir)
		left <- len(all)
		return err
	})
	all := []*client{s.connect("127.0.0.2"), s.connect("127.0.0.2"), s.connect("127.0.0.3")}
	for _, c := range all {
		c.send(0, "one")
		testkit.Eventually(t, "it is stopped", func() bool { return state(t, c.pid) == 'T' })
	}
	close(stuck)
	<-left // of the first, when the others were not there
	if second, third := <-left, <-left; second != 2 || third != 1 {
		t.Errorf("%d and %d are noted, want 2 and 1", second, third)
	}
}

// TestNotNoted: a process that cannot be noted is put into its group all the same.
func TestNotNoted(t *testing.T) {
	s := newServer(t)
	s.open()
	defer s.close()
	if err := os.RemoveAll(s.gate.of.Dir); err != nil {
		t.Fatal(err)
	}
	c := s.connect("127.0.0.2")
	c.ask(0, "one")
	testkit.Eventually(t, "it is counted", func() bool { return s.gate.Stops().Times == 1 })
	if got, want := s.groups.said(), fmt.Sprintf("put %d into a", c.pid); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestSeveralFirst: a process that is found to serve two nodes before it is in the group of the first does not stay there.
func TestSeveralFirst(t *testing.T) {
	s := newServer(t)
	s.open()
	defer s.close()
	s.groups.when(func(pid int) error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return s.gate.all.Maps["processes"].Put(uint32(fd), struct{ Node, Several uint32 }{1, 1})
	})
	c := s.connect("127.0.0.2")
	c.ask(0, "one")
	testkit.Eventually(t, "it is counted", func() bool { return s.gate.Stops().Times == 1 })
	if got, want := s.groups.said(), fmt.Sprintf("put %d into a; back %[1]d from a", c.pid); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestAgent: the agent itself is never stopped: nobody would continue it.
func TestAgent(t *testing.T) {
	s := newServer(t)
	s.open()
	defer s.close()
	var agent uint64
	if err := s.gate.all.Maps["numbers"].Lookup(agentNumber, &agent); err != nil || agent != uint64(os.Getpid()) {
		t.Errorf("the agent is process %d, %v", agent, err)
	}
	c := s.connect("127.0.0.2")
	if err := s.gate.all.Maps["numbers"].Put(agentNumber, uint64(c.pid)); err != nil {
		t.Fatal(err)
	}
	c.ask(0, "one")
	if said := s.groups.said(); said != "" {
		t.Errorf("the agent was stopped: %s", said)
	}
}

// TestFull: receives that the events had no room for are counted.
func TestFull(t *testing.T) {
	s := newServer(t)
	s.open()
	defer s.close()
	if err := s.gate.all.Maps["numbers"].Put(fullNumber, uint64(7)); err != nil {
		t.Fatal(err)
	}
	c := s.connect("127.0.0.2")
	c.ask(0, "one")
	if got, want := s.groups.said(), fmt.Sprintf("wrong 0; put %d into a", c.pid); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestSweepsOnce: who stops a process after it was continued is not disturbed.
func TestSweepsOnce(t *testing.T) {
	newServer(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 16, MaxEntries: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c := halted(t)
	if err := m.Put(uint32(c.PID), stop{Start: c.Start * 1e7}); err != nil {
		t.Fatal(err)
	}
	swept := make(chan error, 1)
	go func() { swept <- sweeps(m, 200*time.Millisecond) }()
	testkit.Eventually(t, "it runs", func() bool { return state(t, c.PID) == 'S' })
	if err := unix.Kill(c.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := <-swept; err != nil {
		t.Error(err)
	}
	if s := state(t, c.PID); s != 'T' {
		t.Errorf("it is in state %c", s)
	}
}
