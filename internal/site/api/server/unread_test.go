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
	h := HTTP(s.Handler())
	inner := h.ConnContext
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(inner(ctx, c), peer{}, w)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = h.Serve(l) }()
	t.Cleanup(func() { h.Close() })
	return l.Addr().String()
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

// slow is a host whose starts take longer than an answer may.
type slow struct {
	acting
	takes time.Duration
}

func (s *slow) Start(context.Context, string, roles.Owner) (bool, error) {
	time.Sleep(s.takes)
	return true, nil
}

// TestNextOnTheConnection: the time in which one answer must be taken does not hold for the next request on the connection: an act that takes longer is answered, and a
// stream goes on.
func TestNextOnTheConnection(t *testing.T) {
	const patience = 500 * time.Millisecond
	h := &slow{takes: 5 * patience / 2}
	h.file = events.File{Dir: filepath.Join(t.TempDir(), "events")}
	at := answering(t, &Server{Host: h, Patience: patience}, admin())
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
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
	answer := ask(http.MethodGet, "/v1/events?follow=true")
	defer func() { c.Close(); answer.Body.Close() }() // in this order: it would read to the stream's end
	time.Sleep(5 * patience / 2)
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
