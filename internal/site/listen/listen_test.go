package listen

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// queue is a listener of connections that a test makes.
type queue chan net.Conn

func (q queue) Accept() (net.Conn, error) {
	c, more := <-q
	if !more {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (q queue) Close() error   { return nil }
func (q queue) Addr() net.Addr { return nil }

// at is a connection from an address.
type at struct {
	net.Conn
	address *net.TCPAddr
}

func (c *at) RemoteAddr() net.Addr { return c.address }

// TestBound: more connections than may be of one address, or in all, are closed; others are taken, also again when one has ended.
func TestBound(t *testing.T) {
	q := make(queue)
	b := Bound(q, 9, 2)
	taken := make(chan net.Conn, 10)
	go func() {
		for c, err := b.Accept(); err == nil; c, err = b.Accept() {
			taken <- c
		}
	}()
	defer close(q)
	come := func(address string) (c net.Conn, is bool) {
		t.Helper()
		ours, theirs := net.Pipe()
		t.Cleanup(func() { ours.Close() })
		q <- &at{theirs, &net.TCPAddr{IP: net.ParseIP(address)}}
		ended := make(chan error, 1)
		go func() { _, err := ours.Read(make([]byte, 1)); ended <- err }()
		select {
		case c := <-taken:
			return c, true
		case <-ended:
			return nil, false
		case <-time.After(testkit.Bound()):
			t.Fatalf("of %s nothing became", address)
			return nil, false
		}
	}
	first, _ := come("192.0.2.1")
	for _, next := range []struct {
		from  string
		taken bool
	}{
		{"192.0.2.1", true},
		{"::ffff:192.0.2.1", false}, // the third of an address
		{"2001:db8::1", true},
		{"2001:db8::1", true},
		{"2001:db8::1", false},
		{"2001:db8::2", true},
		{"2001:db8::3", true},
		{"2001:db8::4", false}, // the fifth of a network of IPv6: half of all
		{"2001:db8:0:1::1", true},
		{"127.0.0.1", true},
		{"127.0.0.2", true},
		{"::1", false},       // the third of this host
		{"192.0.2.2", false}, // the tenth of all
	} {
		if _, is := come(next.from); is != next.taken {
			t.Errorf("%s is taken: %v", next.from, is)
		}
	}
	first.Close()
	first.Close() // counts once
	if _, is := come("192.0.2.1"); !is || b.Open() != 9 {
		t.Errorf("after one has ended: %v, %d", is, b.Open())
	}
}

// TestBoundAtLoopback: on a listener at the loopback, where all connections come from one address, there is the bound of all alone.
func TestBoundAtLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer l.Close()
	b := Bound(l, 3, 1)
	for range 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		testkit.Must(t, err)
		defer c.Close()
	}
	testkit.Must(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(testkit.Bound())))
	for i := range 3 {
		c, err := b.Accept()
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer c.Close()
	}
}

// failing is a listener that cannot accept while it has an error.
type failing struct {
	queue

	errs chan error
}

func (f *failing) Accept() (net.Conn, error) {
	select {
	case err := <-f.errs:
		return nil, err
	default:
		return f.queue.Accept()
	}
}

// TestServe: a listener that fails for a while, as where the process has no descriptors, serves again afterwards; that it fails is said once.
func TestServe(t *testing.T) {
	f := &failing{make(queue), make(chan error, 3)}
	f.errs <- unix.EMFILE
	f.errs <- unix.EMFILE
	var said []string
	answered, ended := make(chan net.Conn), make(chan struct{})
	go func() {
		defer close(ended)
		Serve(f, func(format string, a ...any) { said = append(said, fmt.Sprintf(format, a...)) }, func(c net.Conn) { answered <- c })
	}()
	select {
	case f.queue <- &at{}:
	case <-ended:
		t.Fatalf("it has ended; said: %q", said)
	}
	<-answered
	close(f.queue)
	<-ended
	if len(said) != 1 || !strings.Contains(said[0], "too many open files") {
		t.Errorf("said: %q", said)
	}
}

// timed notes until when who has a connection may read from it.
type timed struct {
	net.Conn

	mu    sync.Mutex
	until time.Time
}

func (c *timed) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	return c.Conn.SetReadDeadline(t)
}

// TestRelay: what both sides say comes through, and a connection that says nothing is closed, without anybody behind being asked.
func TestRelay(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	Relay(theirs, time.Millisecond, func() (net.Conn, error) {
		t.Error("for somebody who says nothing another was asked")
		return nil, net.ErrClosed
	})
	if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("who says nothing stays: %v", err)
	}

	ours, theirs = net.Pipe()
	behind, to := net.Pipe()
	for _, c := range []net.Conn{ours, behind} {
		defer c.Close()
		testkit.Must(t, c.SetDeadline(time.Now().Add(testkit.Bound())))
	}
	from, ended := &timed{Conn: theirs}, make(chan struct{})
	go func() {
		defer close(ended)
		Relay(from, time.Hour, func() (net.Conn, error) { return to, nil })
	}()
	long := strings.Repeat("many words ", relayed)
	for _, word := range []string{"hello", "again", long} {
		for _, way := range [][2]net.Conn{{ours, behind}, {behind, ours}} {
			go func() { _, _ = io.WriteString(way[0], word) }()
			got := make([]byte, len(word))
			if _, err := io.ReadFull(way[1], got); err != nil || string(got) != word {
				t.Errorf("came through: %.20q, %v", got, err)
			}
		}
	}
	from.mu.Lock()
	if !from.until.IsZero() {
		t.Errorf("who has said something may say nothing until %s alone", from.until)
	}
	from.mu.Unlock()
	behind.Close()
	if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("it stays when the other side has ended: %v", err)
	}
	<-ended
}
