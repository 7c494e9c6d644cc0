package netserve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dns "golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// process returns the identity of the process that serves.
func (b *bed) process() proc.ID {
	b.Helper()
	c, err := b.places.dial()
	testkit.Must(b, err)
	defer c.Close()
	id, err := c.process()
	testkit.Must(b, err)
	return id
}

// TestNames: nodes of a bridge know each other while they are there, and the host's resolver answers the rest.
func TestNames(t *testing.T) {
	b := newBed(t)
	ctx := t.Context()
	testkit.Must(b, (&Serve{Places: b.places, Entry: *b.entry("n1", 2)}).Do(ctx))
	b.want("n1", "udp", "10.9.0.1", "n2.", "NameError")
	two := &Serve{Places: b.places, Entry: *b.entry("n2", 3)}
	testkit.Must(b, two.Do(ctx))
	testkit.Must(b, two.Verify(ctx))
	for _, server := range []string{"10.9.0.1", "fd00:9::1"} {
		for _, network := range []string{"udp", "tcp"} {
			b.want("n1", network, server, "n2.", "Success 10.9.0.3")
			b.want("n1", network, server, "N2.Berth.", "Success 10.9.0.3")
			b.want("n2", network, server, "www.example.org.", "Success 192.0.2.7")
		}
	}
	// No open relay: a machine beyond the bridge is not answered, under its own address nor under one of the bridge's.
	b.outside("out")
	for _, from := range []string{"198.51.100.2", "10.9.0.77"} {
		b.from = from
		b.want("out", "udp", "10.9.0.1", "n2.", "nothing")
	}
	b.from = ""
	id := b.process()
	got := status(t, id.PID, "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp")
	none, own := "0000000000000000", "1073741823 1073741823 1073741823 1073741823"
	if d := cmp.Diff([]string{"Uid=" + own, "Gid=" + own, "Groups=", "CapInh=" + none, "CapPrm=" + none, "CapEff=" + none, "CapAmb=" + none, "NoNewPrivs=1", "Seccomp=2"}, got); d != "" {
		t.Error(d)
	}
	testkit.Must(b, two.Undo(ctx))
	testkit.Must(b, two.Undo(ctx))
	b.want("n1", "udp", "10.9.0.1", "n2.", "NameError")
	if b.process() != id {
		t.Error("another process serves now")
	}
	testkit.Must(b, b.places.Drop(ctx, "n1"))
	if id.Alive() {
		t.Error("the process is there after its last node")
	}
	if _, err := os.Stat(b.places.Socket); err == nil {
		t.Error("its socket is left")
	}
}

// TestResolverChanges: the host's resolv.conf is followed, and a resolver that does not answer is passed over.
func TestResolverChanges(t *testing.T) {
	b := newBed(t)
	testkit.Must(b, b.places.Set(t.Context(), b.entry("n1", 2)))
	b.want("n1", "udp", "10.9.0.1", "example.org.", "Success 192.0.2.7")
	b.dnsmasq("127.0.0.54", "192.0.2.8")
	testkit.Must(b, os.WriteFile(b.resolv, []byte("# nobody listens at the first; the second is this process itself\nnameserver 127.0.0.55\nnameserver 10.9.0.1\nnameserver 127.0.0.54\n"), 0o644))
	b.want("n1", "udp", "10.9.0.1", "example.org.", "Success 192.0.2.8")
	testkit.Must(b, os.WriteFile(b.resolv, []byte("nameserver 127.0.0.55\n"), 0o644))
	b.want("n1", "udp", "10.9.0.1", "example.org.", "ServerFailure")
}

// TestFlood: a node that asks without end for what no resolver answers keeps neither the process's memory nor its answers to
// others.
func TestFlood(t *testing.T) {
	b := newBed(t)
	silent, err := net.ListenPacket("udp", "127.0.0.56:53")
	testkit.Must(b, err)
	defer silent.Close()
	testkit.Must(b, os.WriteFile(b.resolv, []byte("nameserver 127.0.0.56\n"), 0o644))
	testkit.Must(b, b.places.Set(t.Context(), b.entry("n1", 2)))
	testkit.Must(b, b.places.Set(t.Context(), b.entry("n2", 3)))
	var c net.Conn
	testkit.Must(b, b.in("n1", func() (err error) { c, err = net.Dial("udp", "10.9.0.1:53"); return err }))
	defer c.Close()
	for range 20000 {
		if _, err := c.Write(question(t, "example.org.", dns.TypeA, nil)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(b, "the other node is answered", func() bool { return b.ask("n2", "udp", "10.9.0.1", "n1.") == "Success 10.9.0.2" })
	pid := b.process().PID
	open, err := os.ReadDir("/proc/" + status(t, pid, "Pid")[0][4:] + "/fd")
	testkit.Must(b, err)
	if len(open) > mostAskedEach+60 {
		t.Errorf("it has %d files open", len(open))
	}
	t.Logf("%d files, %v", len(open), status(t, pid, "VmRSS", "Threads"))
}

// echo serves a port of a node until the test ends: it sends back what it gets, in the end.
func (b *bed) echo(node, at string) {
	b.Helper()
	var l net.Listener
	testkit.Must(b, b.in(node, func() (err error) { l, err = net.Listen("tcp", at); return err }))
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				all, _ := io.ReadAll(c)
				_, _ = c.Write(all)
				c.Close()
			}()
		}
	}()
	var p net.PacketConn
	testkit.Must(b, b.in(node, func() (err error) { p, err = net.ListenPacket("udp", at); return err }))
	b.Cleanup(func() { p.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = p.WriteTo(buf[:n], from)
		}
	}()
}

func relayOf(proto, at, to string) Relay {
	return Relay{Proto: proto, At: netip.MustParseAddrPort(at), To: netip.MustParseAddrPort(to)}
}

// through sends bytes to a port of the host's loopback and returns what comes back.
func through(network, at string, data []byte) ([]byte, error) {
	c, err := net.DialTimeout(network, at, testkit.Bound())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Bound()))
	if network == "udp" {
		if _, err := c.Write(data); err != nil {
			return nil, err
		}
		buf := make([]byte, 2048)
		n, err := c.Read(buf)
		return buf[:n], err
	}
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		written <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	return got, errors.Join(err, <-written) // the kernel tells of a reset once, to the reader or the writer
}

// TestRelays: a port of the host's loopback leads to the node, and is closed with it.
func TestRelays(t *testing.T) {
	b := newBed(t)
	ctx := t.Context()
	b.echo("n1", "10.9.0.2:80")
	testkit.Must(b, b.places.Set(ctx, b.entry("n1", 2,
		relayOf("tcp", "127.0.0.1:8080", "10.9.0.2:80"), relayOf("tcp", "[::1]:8080", "10.9.0.2:80"),
		relayOf("udp", "127.0.0.1:8080", "10.9.0.2:80"), relayOf("udp", "[::1]:8080", "10.9.0.2:80"), relayOf("tcp", "127.0.0.1:8081", "10.9.0.2:81"))))
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, at := range []string{"127.0.0.1:8080", "[::1]:8080"} {
		if got, err := through("tcp", at, big); err != nil || !bytes.Equal(got, big) {
			t.Errorf("%s: %d bytes of %d, %v", at, len(got), len(big), err)
		}
		for range 3 {
			if got, err := through("udp", at, []byte("hello")); err != nil || string(got) != "hello" {
				t.Errorf("%s by udp: %q, %v", at, got, err)
			}
		}
	}
	if got, err := through("tcp", "127.0.0.1:8081", []byte("x")); err == nil {
		t.Errorf("a port of the node where nobody listens: %q", got)
	}
	// A port that another program has is refused, and what the node had before stays.
	other, err := net.Listen("tcp", "127.0.0.1:9090")
	testkit.Must(b, err)
	defer other.Close()
	if err := b.places.Set(ctx, b.entry("n2", 3, relayOf("tcp", "127.0.0.1:9090", "10.9.0.3:80"))); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a port that is taken: %v", err)
	}
	b.want("n1", "udp", "10.9.0.1", "n2.", "NameError")
	testkit.Must(b, b.places.Set(ctx, b.entry("n1", 2)))
	if _, err := through("tcp", "127.0.0.1:8080", big); err == nil {
		t.Error("the port is open, and the node publishes it no more")
	}
}

// TestKilled: the keeper starts the process again when it was killed, and everything works as before.
func TestKilled(t *testing.T) {
	b := newBed(t)
	b.echo("n1", "10.9.0.2:80")
	ctx, cancel := context.WithCancel(t.Context())
	entries := map[string]*Entry{"n1": b.entry("n1", 2, relayOf("tcp", "127.0.0.1:8080", "10.9.0.2:80")), "n2": b.entry("n2", 3)}
	var started atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.places.Watch(ctx, func() []string { return []string{"n1", "n2"} }, func(ctx context.Context, lacking []string) error {
			for _, n := range lacking {
				if err := b.places.Set(ctx, entries[n]); err != nil {
					return err
				}
			}
			started.Add(1)
			return nil
		})
	}()
	works := func() bool {
		if b.ask("n1", "udp", "10.9.0.1", "n2.") != "Success 10.9.0.3" {
			return false
		}
		got, err := through("tcp", "127.0.0.1:8080", []byte("hello"))
		return err == nil && string(got) == "hello"
	}
	testkit.Eventually(b, "the keeper starts the process", func() bool { return started.Load() > 0 })
	testkit.Eventually(b, "it works", works)
	for range 3 {
		old := b.process()
		testkit.Must(b, unix.Kill(old.PID, unix.SIGKILL))
		began := time.Now()
		testkit.Eventually(b, "another process", func() bool {
			lacks, err := b.places.Lacks([]string{"n1", "n2"})
			return !old.Alive() && err == nil && len(lacks) == 0
		})
		if !works() {
			t.Error("it does not work again")
		}
		t.Logf("works again after %v", time.Since(began).Round(time.Millisecond))
	}
	testkit.Eventually(b, "nodes were lacking four times", func() bool { return started.Load() >= 4 })
	cancel()
	<-done
	if n := started.Load(); n != 4 {
		t.Errorf("nodes were lacking %d times, want 4", n)
	}
	// Another keeper finds the process and starts none.
	id := b.process()
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	b.places.Watch(ctx, func() []string { return []string{"n1", "n2"} }, func(context.Context, []string) error { t.Error("nodes were lacking"); return nil })
	if b.process() != id {
		t.Error("another process serves")
	}
}
