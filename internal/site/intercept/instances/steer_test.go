package instances

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// listener is a server that does not end when it is asked to.
const listener = `import signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
s = socket.create_server(("", int(sys.argv[1])))
print("ready", *sys.argv[2:], flush=True)
signal.pause(); signal.pause()`

// bed is a network namespace in which all addresses of the loopback are peers.
type bed struct {
	t     *testing.T
	netns *os.File
	pins  Pins
}

func newBed(t *testing.T) *bed {
	t.Helper()
	testkit.NeedsRoot(t)
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		t.Fatal(err)
	}
	netns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t, netns, PinsOf("berth-test-"+filepath.Base(t.TempDir()), "shared", t.TempDir())}
	t.Cleanup(func() {
		if err := b.pins.Remove(); err != nil {
			t.Error(err)
		}
		_ = netns.Close()
	})
	return b
}

// listen listens at a port of all addresses, and answers each connection with a word.
func (b *bed) listen(port uint16, word string) (l *net.TCPListener, file *os.File) {
	b.t.Helper()
	conf := net.ListenConfig{}
	conf.SetMultipathTCP(false)
	any, err := conf.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		b.t.Fatal(err)
	}
	l = any.(*net.TCPListener)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(word))
			_ = c.Close()
		}
	}()
	b.t.Cleanup(func() { _ = l.Close() })
	if file, err = l.File(); err != nil {
		b.t.Fatal(err)
	}
	return l, file
}

// answers is what a peer at an address is answered at a port.
func (b *bed) answers(from string, port uint16) string {
	b.t.Helper()
	a := netip.MustParseAddr(from)
	to := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)}
	if a.Is6() {
		to.IP = net.IPv6loopback
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: a.AsSlice()}, Timeout: time.Second}
	c, err := d.DialContext(context.Background(), "tcp", to.String())
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	word := make([]byte, 20)
	n, _ := c.Read(word)
	return string(word[:n])
}

// arrives reports whether a datagram from an address reaches a socket within some time.
func (b *bed) arrives(from string, at *net.UDPConn, within time.Duration) bool {
	b.t.Helper()
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from)}, at.LocalAddr().(*net.UDPAddr))
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(from)); err != nil {
		b.t.Fatal(err)
	}
	_ = at.SetReadDeadline(time.Now().Add(within))
	text := make([]byte, 20)
	n, _, err := at.ReadFrom(text)
	return err == nil && string(text[:n]) == from
}

// TestSteer: a node's connections are refused until its instance listens, go to that one, and are refused when it has ended; the steering
// goes on without who made it; nobody reaches another one's instance.
func TestSteer(t *testing.T) {
	b := newBed(t)
	s, err := Open(b.pins, 1094, b.netns)
	if err != nil {
		t.Fatal(err)
	}
	b.listen(1094, "main")
	l, socket := b.listen(4001, "own")
	node, six := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("::1")
	expect := func(when, all string) {
		t.Helper()
		var got []string
		for _, c := range []struct {
			from string
			port uint16
		}{{"127.0.0.2", 1094}, {"::1", 1094}, {"127.0.0.3", 1094}, {"127.0.0.2", 4001}, {"127.0.0.3", 4001}} {
			got = append(got, b.answers(c.from, c.port))
		}
		if d := cmp.Diff(all, strings.Join(got, " ")); d != "" {
			t.Errorf("%s: %s", when, d)
		}
	}
	do := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	expect("at first", "main main main own own")
	datagrams, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1094})
	do(err)
	defer datagrams.Close()
	local := netip.MustParseAddr("fe80::1")
	do(s.Guard(4001), s.Refuse(local))
	expect("a link-local address that was not made of a MAC is a node's", "main main main refused refused")
	do(s.Pass(local), s.Refuse(node), s.Refuse(six))
	if b.arrives("127.0.0.2", datagrams, 200*time.Millisecond) || !b.arrives("127.0.0.3", datagrams, testkit.Bound()) {
		t.Error("a datagram of the node reaches the server, or one of another does not")
	}
	expect("before the instance listens", "refused refused main refused refused")
	do(s.Serve(node, socket), s.Serve(six, socket), socket.Close())
	expect("while it listens", "own own main own refused")
	s.Close()
	expect("without who steers", "own own main own refused")
	if s, err = Open(b.pins, 1094, b.netns); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	known, err := s.Known()
	if do(err, s.Whole(b.netns)); len(known) != 2 || b.pins.Wrong() != "" {
		t.Errorf("taken over: %v are known; wrong: %q", known, b.pins.Wrong())
	}
	do(s.Withdraw(six))
	expect("an address is taken from the node", "own refused main own refused")
	do(s.Pass(six))
	expect("an address is the node's no more", "own main main own refused")
	do(l.Close())
	expect("the instance ended", "refused main main refused refused")
	do(s.GuardOnly(nil), s.Pass(node))
	expect("the node is gone", "main main main refused refused") // nothing listens there
	do(s.Refuse(node), b.pins.Remove())
	expect("nothing is steered", "main main main refused refused")
	if b.pins.Wrong() == "" {
		t.Error("it does not say that nothing is steered")
	}
}

// TestEndMany: an instance with very many processes that ignore SIGTERM is ended all the same, and what it said is no command of a terminal.
func TestEndMany(t *testing.T) {
	testkit.NeedsRoot(t)
	netns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer netns.Close()
	s := &Server{Dir: t.TempDir(), Netns: netns, Command: []string{"/bin/sh", "-c", `trap "" TERM; i=0; while [ $i -lt 300 ]; do sleep 100 & i=$((i+1)); done
printf 'all \033[31mof them\n'; wait; wait`}}
	id, wait, err := s.Start("a", 1, fork.Start)
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 1)
	go func() { ends <- wait() }()
	testkit.Eventually(t, "it says something", func() bool { return s.Last("a") != "" })
	if last := s.Last("a"); last != "all [31mof them" {
		t.Errorf("it said %q", last)
	}
	procs := filepath.Join(t.TempDir(), "procs")
	var all []string
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, _ := strconv.Atoi(filepath.Base(e)); pid > 0 {
			if of, err := unix.Getsid(pid); err == nil && of == id.PID {
				all = append(all, strconv.Itoa(pid))
			}
		}
	}
	if err := os.WriteFile(procs, []byte(strings.Join(all, "\n")), 0o600); err != nil || len(all) < 300 {
		t.Fatalf("%d processes, %v", len(all), err)
	}
	begun := time.Now()
	if err := s.End("a", procs, id.PID, 200*time.Millisecond); err != nil || id.Alive() {
		t.Errorf("after %v: %v, alive: %v", time.Since(begun), err, id.Alive())
	}
	<-ends
}

// TestListening: the socket of a process is found at its port, and the end of the process is seen.
func TestListening(t *testing.T) {
	s := &Server{Dir: t.TempDir(), Command: []string{"/usr/bin/python3", "-c", listener, "{port}", "{node}", "{dir}"}}
	if _, err := os.Stat(s.Command[0]); err != nil {
		t.Skip("needs python3")
	}
	testkit.NeedsRoot(t)
	var err error
	if s.Netns, err = os.Open("/proc/self/ns/net"); err != nil {
		t.Fatal(err)
	}
	defer s.Netns.Close()
	port, err := s.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	id, wait, err := s.Start("a", port, fork.Start)
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 1)
	go func() { ends <- wait() }()
	pidfd, err := id.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	socket, alive, err := Listening(t.Context(), pidfd, id, port)
	if err != nil || !alive || socket == nil {
		t.Fatalf("it listens: %v, alive: %v, %v", socket, alive, err)
	}
	socket.Close()
	procs := filepath.Join(t.TempDir(), "procs") // as the file of a group
	text := []byte(fmt.Sprintf("%d\n%d\n", id.PID, os.Getpid()))
	if err := os.WriteFile(procs, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.End("b", procs, 0, 0); err != nil || !id.Alive() {
		t.Errorf("what ends the instance of b ended that of a: %v", err)
	}
	begun := time.Now() // it does not mind SIGTERM
	if err := s.End("a", procs, 0, 200*time.Millisecond); err != nil || id.Alive() || time.Since(begun) < 200*time.Millisecond {
		t.Errorf("after %v: %v, alive: %v", time.Since(begun), err, id.Alive())
	}
	if err := <-ends; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended with %v", err)
	}
	if last := s.Last("a"); last != "ready a "+s.State("a") {
		t.Errorf("it said %q", last)
	}
	if _, alive, err := Listening(t.Context(), pidfd, id, port); alive || err != nil {
		t.Errorf("of an ended process: alive %v, %v", alive, err)
	}
	if err := s.Forget("a"); err != nil {
		t.Error(err)
	}
}

// TestRefused: a kernel that steers no connections is refused, with what forbids it.
func TestRefused(t *testing.T) {
	for err, words := range map[error]string{unix.EPERM: "a policy of this host", unix.EINVAL: "Linux 5.9 or later"} {
		if got := refused(err); refuse.KindOf(got) != refuse.Cannot || !errors.Is(got, err) || !strings.Contains(got.Error(), words) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
