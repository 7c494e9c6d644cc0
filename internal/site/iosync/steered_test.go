package iosync

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/site/iosync/place"
	"berth/internal/site/iosync/want"
	"berth/internal/sys/layout"
	"berth/test/testkit"
)

// nodesServer tells who connects which node it is of. It listens anew when it is hung up.
const nodesServer = `import os, signal, socket
def listen():
    s = socket.create_server(("", int(os.environ["BERTH_PORT"])))
    s.settimeout(0.1)
    return s
again = []
signal.signal(signal.SIGHUP, lambda *a: again.append(1))
s = listen()
while True:
    if again:
        again.clear()
        s.close()
        s = listen()
    try:
        c, _ = s.accept()
    except OSError:
        continue
    c.sendall(os.environ["BERTH_NODE"].encode())
    c.close()
`

// steeredBed is a file system with way instances in a network namespace, in which all addresses of the loopback are peers, and the site's
// own server.
type steeredBed struct {
	*steered
	t *testing.T
	l layout.Layout
}

func newSteeredBed(t *testing.T) *steeredBed {
	t.Helper()
	testkit.NeedsRoot(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	testkit.Must(t, unix.Unshare(unix.CLONE_NEWNET))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	testkit.Must(t, err)
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	testkit.Must(t, err)
	lo.SetUint16(unix.IFF_UP)
	testkit.Must(t, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
	main, err := net.Listen("tcp", ":1094")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = main.Close() })
	go func() {
		for {
			c, err := main.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("main"))
			_ = c.Close()
		}
	}()

	facts, err := host.ReadFacts()
	testkit.Must(t, err)
	l := layout.New(t.TempDir())
	testkit.Must(t, os.MkdirAll(place.Dir(l, "x"), 0o755))
	at, err := place.Reopen(l, facts.Cgroups, "x")
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := at.Close(); err != nil {
			t.Error(err)
		}
	})
	conf := want.Filesystem{
		Name: "x", Server: "other", Way: want.Instances, Port: 1094, Command: []string{python, "-c", nodesServer},
		Namespace: fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid()),
	}
	w, err := newSteered(l, &groups{at: at, conf: conf}, nil, slog.New(slog.DiscardHandler), func() {})
	testkit.Must(t, err)
	t.Cleanup(func() {
		nodes, _ := at.Nodes()
		testkit.Happens(func() bool {
			if len(nodes) == 0 {
				return true
			}
			freed, err := w.free(nodes)
			if err != nil {
				t.Error(err)
				return true
			}
			_, _ = at.Remove(freed...)
			nodes, _ = at.Nodes()
			return false
		})
		w.close()
		if err := unsteer(l, "x", nil, func() (*place.FS, error) { return at, nil }); err != nil {
			t.Error(err)
		}
	})
	return &steeredBed{steered: w, t: t, l: l}
}

// up makes a node with addresses, as hold does, and returns its instance.
func (b *steeredBed) up(node string, addresses ...string) *running {
	b.t.Helper()
	if _, err := b.at.Make(node); err != nil {
		b.t.Fatal(err)
	}
	var all []netip.Addr
	for _, a := range addresses {
		all = append(all, netip.MustParseAddr(a))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.claim(node, all); err != nil {
		b.t.Fatal(err)
	}
	one, err := b.one(node)
	if err != nil {
		b.t.Fatal(err)
	}
	if one.listens && !one.served(all) {
		one.seek()
	}
	return one
}

// is returns an instance as it is now.
func (b *steeredBed) is(one *running) instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	return one.instance
}

// asked returns what answers a connection from an address to a port; "" if it is refused.
func (b *steeredBed) asked(from string, port uint16) string {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: testkit.Bound()}
	c, err := d.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
	if err != nil {
		return ""
	}
	defer c.Close()
	text, _ := io.ReadAll(c)
	return string(text)
}

// TestManyInstances: of many that start at once, each has a port of its own, which nobody but nodes gets to, and each node its own instance.
func TestManyInstances(t *testing.T) {
	b := newSteeredBed(t)
	const n = 40
	of, all := map[string]string{}, []*running{}
	for i := range n {
		of[fmt.Sprint("127.0.1.", i+1)] = fmt.Sprint("n", i)
		all = append(all, b.up(fmt.Sprint("n", i), fmt.Sprint("127.0.1.", i+1)))
	}
	if err := b.followed(nil, true); err != nil { // while they start
		t.Fatal(err)
	}
	for i, one := range all {
		testkit.Eventually(b.t, fmt.Sprint("instance ", i, " listens"), func() bool { b.mu.Lock(); defer b.mu.Unlock(); return one.listens })
	}
	ports := map[uint16]bool{}
	for i, one := range all {
		port := b.is(one).Port
		if ports[port] = true; len(ports) != i+1 {
			t.Errorf("port %d is that of two instances", port)
		}
		if got := b.asked("127.0.0.1", port); got != "" {
			t.Errorf("%s answers at its own port who is no node", got)
		}
		if got := b.asked("127.0.1.1", port); got != "n0" {
			t.Errorf("%q answers node n0 at the port of instance %d", got, i)
		}
	}
	for from, node := range of {
		if got := b.asked(from, 1094); got != node {
			t.Errorf("%q answers node %s", got, node)
		}
	}
	if got := b.asked("127.0.0.1", 1094); got != "main" {
		t.Errorf("%q answers who is no node", got)
	}
}

// TestSocketMadeAnew: an instance that closes its socket and listens anew serves its node again, and so does one whose node gets another
// address. Meanwhile the node is refused.
func TestSocketMadeAnew(t *testing.T) {
	b := newSteeredBed(t)
	one := b.up("a", "127.0.1.1")
	ask := func(from, want string) func() bool {
		return func() bool {
			got := b.asked(from, 1094)
			if got == "main" {
				t.Fatalf("the site's server answers %s", from)
			}
			return got == want
		}
	}
	testkit.Eventually(b.t, "its instance answers", ask("127.0.1.1", "a"))
	if err := unix.Kill(b.is(one).PID, unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(b.t, "it closed its socket", ask("127.0.1.1", ""))
	began := time.Now()
	testkit.Eventually(b.t, "it answers at its new socket", ask("127.0.1.1", "a"))
	t.Logf("refused for %v", time.Since(began).Round(10*time.Millisecond))
	b.up("a", "127.0.1.1", "127.0.1.2")
	testkit.Eventually(b.t, "it answers at the other address", ask("127.0.1.2", "a"))
	b.up("a", "127.0.1.2")
	if got := b.asked("127.0.1.1", 1094); got != "" {
		t.Errorf("%q answers the address that was the node's, before it is known that nobody has it", got)
	}
	if err := b.followed(map[netip.Addr]string{netip.MustParseAddr("127.0.1.2"): "a"}, true); err != nil {
		t.Fatal(err)
	}
	if got := b.asked("127.0.1.1", 1094); got != "main" {
		t.Errorf("%q answers the address that nobody has", got)
	}
}

// TestEntryThatFails: while an entry of the file cannot be served, nodes are refused, and the next entry finds what was left.
func TestEntryThatFails(t *testing.T) {
	b := newSteeredBed(t)
	b.up("a", "127.0.1.1")
	testkit.Eventually(b.t, "its instance answers", func() bool { return b.asked("127.0.1.1", 1094) == "a" })
	same := func() (*place.FS, error) { return b.at, nil }
	wrong := b.conf
	wrong.User = "nobody-of-this-name"
	if err := unsteer(b.l, "x", &wrong, same); err != nil {
		t.Fatal(err)
	}
	if w, err := newSteered(b.l, &groups{at: b.at, conf: wrong}, nil, b.log, func() {}); err == nil {
		w.close()
		t.Fatal("served as a user that is not there")
	}
	if got := b.asked("127.0.1.1", 1094); got != "" {
		t.Errorf("%q answers while the entry is wrong", got)
	}
	other := b.conf
	other.Way, other.Interface = want.Network, "eth0"
	if err := unsteer(b.l, "x", &other, same); err != nil {
		t.Fatal(err)
	}
	if got := b.asked("127.0.1.1", 1094); got != "main" {
		t.Errorf("%q answers when the file system has another way", got)
	}
	for _, f := range []string{steeredFile, "instances", "bpf"} {
		if _, err := os.Lstat(filepath.Join(place.Dir(b.l, "x"), f)); err == nil {
			t.Errorf("%s is left", f)
		}
	}
}
