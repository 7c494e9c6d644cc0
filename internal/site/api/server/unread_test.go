package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/node/events"
	"berth/internal/site/audit"
	"berth/internal/spec/roles"
	"berth/test/testkit"
)

// answering answers as a server does whom everybody who asks is w for, and returns its address.
func answering(t *testing.T, s *Server, w roles.Who) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	answeringAt(t, l, s, w)
	return l.Addr().String()
}

func answeringAt(t *testing.T, l net.Listener, s *Server, w roles.Who) {
	t.Helper()
	h := HTTP(s.Handler())
	inner := h.ConnContext
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(inner(ctx, c), peer{}, w)
	}
	go func() { _ = h.Serve(l) }()
	t.Cleanup(func() { h.Close() })
}

// TestUnread: who asks and does not take the answers loses his connection, whatever he asks for.
func TestUnread(t *testing.T) {
	ann := roles.Who{Name: "ann", Role: roles.Operator, Via: roles.ViaTLS}
	at := answering(t, &Server{Host: &acting{}, Patience: 50 * time.Millisecond}, ann)
	var all sync.WaitGroup
	defer all.Wait()
	for what, request := range map[string]string{
		"what is not there": "GET /x HTTP/1.1\r\nHost: b\r\n\r\n",
		"another method":    "BREW /v1/nodes HTTP/1.1\r\nHost: b\r\n\r\n",
		"another spelling":  "GET /v1//x HTTP/1.1\r\nHost: b\r\n\r\n",
		"the document":      "GET /v1/openapi.json HTTP/1.1\r\nHost: b\r\n\r\n",
		"a refused act":     "POST /v1/nodes/x/stop HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n",
	} {
		d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error { // the kernel takes little of the answers
			return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
		}}
		c, err := d.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(testkit.Bound()))
		all.Go(func() {
			var err error
			for err == nil { // until the server reads no more, then until it ends the connection
				_, err = io.WriteString(c, request)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the connection stays, and holds what is not read", what)
			}
		})
	}
}

// timed is a listener of one connection, which knows until when what the server writes must be taken.
type timed struct {
	net.Listener
	until atomic.Int64 // nanoseconds since 1970; 0: for ever
	bound atomic.Bool  // it was not for ever once
}

func (l *timed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &timedConn{c, l}, err
}

// passed waits until what the server would write now comes too late, if anything bounds it.
func (l *timed) passed() {
	if until := l.until.Load(); until != 0 {
		time.Sleep(time.Until(time.Unix(0, until)) + time.Millisecond)
	}
}

type timedConn struct {
	net.Conn
	of *timed
}

func (c *timedConn) SetWriteDeadline(t time.Time) error {
	c.of.until.Store(0)
	if !t.IsZero() {
		c.of.until.Store(t.UnixNano())
		c.of.bound.Store(true)
	}
	return c.Conn.SetWriteDeadline(t)
}

// slow is a host whose starts end after the time in which the answer before must be taken.
type slow struct {
	acting
	on *timed
}

func (s *slow) Start(context.Context, string, roles.Owner) (bool, error) {
	s.on.passed()
	return true, nil
}

// TestNextOnTheConnection: the time in which one answer must be taken does not hold for the next request on the connection: an act that takes longer is answered, and a
// stream goes on.
func TestNextOnTheConnection(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	l := &timed{Listener: inner}
	h := &slow{on: l}
	h.file = events.File{Dir: filepath.Join(t.TempDir(), "events")}
	answeringAt(t, l, &Server{Host: h, Patience: 500 * time.Millisecond}, admin())
	c, err := net.Dial("tcp", l.Addr().String())
	testkit.Must(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Bound()))
	r := bufio.NewReader(c)
	ask := func(method, path string) *http.Response {
		t.Helper()
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n", method, path)
		answer, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		return answer
	}
	for _, path := range []string{"/v1/nodes", "/v1/nodes/n/start", "/v1/nodes"} {
		method := http.MethodGet
		if strings.HasSuffix(path, "start") {
			method = http.MethodPost
		}
		answer := ask(method, path)
		if _, err := io.ReadAll(answer.Body); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		answer.Body.Close()
	}
	if !l.bound.Load() {
		t.Error("nothing bounded how long an answer may be taken")
	}
	answer := ask(http.MethodGet, "/v1/events?follow=true")
	defer func() { c.Close(); answer.Body.Close() }() // in this order: it would read to the stream's end
	l.passed()
	for n := range 3 {
		if err := h.file.Append([]events.Event{{Time: time.Now(), Node: fmt.Sprint("n", n), Event: events.Created}}, false); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(answer.Body).ReadString('\n')
		if err != nil || !strings.Contains(line, fmt.Sprint("n", n)) {
			t.Fatalf("event %d of a stream: %q, %v", n, line, err)
		}
	}
}

// TestOtherPages: a page that a browser shows does nothing with the certificate that the browser has, and what it asked for is in the audit; who is no browser is not
// asked where he comes from.
func TestOtherPages(t *testing.T) {
	var kept []audit.Line
	s := &Server{Host: &acting{}, Reports: Reports(nil), Audit: func(line audit.Line, err error) error {
		if err != nil {
			kept = append(kept, line)
		}
		return nil
	}}
	ask := func(method, path string, headers map[string]string) (int, string) {
		r := httptest.NewRequest(method, path, nil)
		for name, value := range headers {
			r.Header.Set(name, value)
		}
		answer := httptest.NewRecorder()
		s.Handler().ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), peer{}, admin())))
		return answer.Code, answer.Body.String()
	}
	for _, from := range []map[string]string{
		{"Sec-Fetch-Site": "cross-site", "Origin": "https://other.example"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://other.example"}, {"Origin": "null"},
	} {
		kept = nil
		if status, text := ask(http.MethodPost, "/v1/nodes/n/start", from); status != http.StatusForbidden || !strings.Contains(text, "without a browser") {
			t.Errorf("%v: %d %s", from, status, text)
		}
		if len(kept) != 1 || kept[0].Act != roles.NodeStart || kept[0].On != "n" || kept[0].Who != "root" || kept[0].Begun {
			t.Errorf("%v: the audit has %+v", from, kept)
		}
		if status, text := ask(http.MethodPost, "/v1/sync/report", from); status != http.StatusForbidden || !strings.Contains(text, "without a browser") {
			t.Errorf("a report of %v: %d %s", from, status, text)
		}
	}
	if status, _ := ask(http.MethodPost, "/v1/nodes/n/start", nil); status != http.StatusOK {
		t.Errorf("who is no browser: %d", status)
	}
}

// TestResize: the command's terminal has the size of the client's; a client without a size, and a command without a terminal, change nothing.
func TestResize(t *testing.T) {
	(&child{}).resize(24, 80)
	master, slave, err := openTerminal(0, 0)
	testkit.Must(t, err)
	defer master.Close()
	defer slave.Close()
	c := &child{terminal: master}
	for _, size := range [][2]uint16{{24, 80}, {0, 80}, {24, 0}} {
		c.resize(size[0], size[1])
	}
	if is, err := unix.IoctlGetWinsize(int(slave.Fd()), unix.TIOCGWINSZ); err != nil || is.Row != 24 || is.Col != 80 {
		t.Errorf("%+v, %v", is, err)
	}
}
