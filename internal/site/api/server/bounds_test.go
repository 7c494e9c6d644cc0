package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"berth/internal/node/events"
	"berth/internal/site/api"
	"berth/internal/site/listen"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestBoundsOfCallers: who has as many commands or streams open as he may gets 429 for one more; others do not notice, and what he
// ends is his again.
func TestBoundsOfCallers(t *testing.T) {
	h := &runs{program: []string{"/bin/sh", "-c", "exec cat", "berth"}}
	h.file = events.File{Dir: filepath.Join(t.TempDir(), "events")}
	s := &Server{Host: h}
	eve, vic := serving(t, s, roles.Who{Name: "eve", Role: roles.Viewer, Via: roles.ViaTLS}), serving(t, s, roles.Who{Name: "vic", Role: roles.Viewer, Via: roles.ViaTLS})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Bound())
	defer cancel()
	// begin begins a command, and returns what ends it, or the status with which it is refused.
	begin := func(address string) (end func(), status int) {
		t.Helper()
		ws, answer, err := websocket.Dial(ctx, address+"/v1/command", nil)
		if err != nil && answer != nil {
			return nil, answer.StatusCode
		}
		if err == nil {
			err = wsjson.Write(ctx, ws, api.Start{Args: []string{"ls"}})
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() { _ = ws.CloseNow() }, 0
	}
	var last func()
	for i := range mostCommands {
		end, status := begin(eve)
		if status != 0 {
			t.Fatalf("command %d: %d", i+1, status)
		}
		defer end()
		last = end
	}
	if _, status := begin(eve); status != http.StatusTooManyRequests {
		t.Errorf("one command more: %d", status)
	}
	if end, status := begin(vic); status != 0 {
		t.Errorf("a command of another: %d", status)
	} else {
		defer end()
	}
	last()
	for { // the command is asked to end
		end, status := begin(eve)
		if status == 0 {
			defer end()
			break
		}
		if ctx.Err() != nil {
			t.Fatal("what was ended counts for ever")
		}
		time.Sleep(10 * time.Millisecond)
	}
	follow := func() int {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, eve+"/v1/events?follow=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { answer.Body.Close() })
		return answer.StatusCode
	}
	for i := range mostStreams {
		if status := follow(); status != http.StatusOK {
			t.Fatalf("stream %d: %d", i+1, status)
		}
	}
	if status := follow(); status != http.StatusTooManyRequests {
		t.Errorf("one stream more: %d", status)
	}
}

// TestSilent: of the connections of one address that say nothing the newest mostSilent stay, and those that ask count no more: who has many does not keep
// another of the same address out.
func TestSilent(t *testing.T) {
	h := HTTP((&Server{Host: &fake{}}).Handler())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limit := listen.Bound(l, MostConnections, 0)
	go func() { _ = h.Serve(limit) }()
	defer h.Close()
	dial := func(from string) net.Conn {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ended := func(c net.Conn) bool { // closed by the server, not only quiet
		_ = c.SetReadDeadline(time.Now().Add(testkit.Bound()))
		_, err := c.Read(make([]byte, 1))
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	}
	oldest := dial("127.0.0.1")
	for range mostSilent {
		dial("127.0.0.1")
	}
	if !ended(oldest) {
		t.Error("more than may be that say nothing stay")
	}
	ask := dial("127.0.0.2") // all of the loopback are one: each user of a host has them
	if _, err := ask.Write([]byte("GET /v1/openapi.json HTTP/1.1\r\nHost: b\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = ask.SetReadDeadline(time.Now().Add(testkit.Bound()))
	if n, err := ask.Read(make([]byte, 100)); n == 0 {
		t.Errorf("somebody else of the address, who asks at once, is not answered: %v", err)
	}
	if n := limit.Open(); n > mostSilent+1 {
		t.Errorf("%d connections are open, want %d at most", n, mostSilent+1)
	}
	for _, one := range [][2]string{{"127.0.0.1", "127.9.9.9"}, {"::1", "127.0.0.1"}, {"2001:db8::1", "2001:db8::ffff:1"}, {"::ffff:192.0.2.1", "192.0.2.1"}} {
		if a, b := from(net.ParseIP(one[0])), from(net.ParseIP(one[1])); a != b {
			t.Errorf("%v count as %s and %s", one, a, b)
		}
	}
	for _, two := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8:0:1::1"}} {
		if a, b := from(net.ParseIP(two[0])), from(net.ParseIP(two[1])); a == b {
			t.Errorf("%v count as one: %s", two, a)
		}
	}
}

// TestConnectionsOfOne: a caller who keeps many connections open leaves those of the listener that others need, and what he closes is his again.
func TestConnectionsOfOne(t *testing.T) {
	h := HTTP((&Server{Host: &fake{}}).Handler())
	inner := h.ConnContext
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context { // by address, as by certificate
		name, role := "eve", roles.Viewer
		switch c.RemoteAddr().(*net.TCPAddr).IP.String() {
		case "127.0.0.2":
			name = "vic"
		case "127.0.0.3":
			name, role = "root", roles.Admin
		}
		return context.WithValue(inner(ctx, c), peer{}, roles.Who{Name: name, Role: role, Via: roles.ViaTLS})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = h.Serve(listen.Bound(l, MostConnections, 0)) }()
	defer h.Close()
	ask := func(from string) (net.Conn, int) {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(testkit.Bound()))
		if _, err := c.Write([]byte("GET /nothing HTTP/1.1\r\nHost: b\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return c, 0
		}
		defer answer.Body.Close()
		return c, answer.StatusCode
	}
	var last net.Conn
	for range mostOfOne {
		c, status := ask("127.0.0.1")
		if status != http.StatusNotFound {
			t.Fatalf("%d", status)
		}
		last = c
	}
	more, status := ask("127.0.0.1")
	if n, err := more.Read(make([]byte, 1)); status != http.StatusTooManyRequests || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection more: %d, and it stays: %d bytes, %v", status, n, err)
	}
	for _, other := range []string{"127.0.0.2", "127.0.0.3"} {
		if _, status := ask(other); status != http.StatusNotFound {
			t.Errorf("another caller: %d", status)
		}
	}
	last.Close()
	testkit.Eventually(t, "he may open another one", func() bool { _, status := ask("127.0.0.1"); return status == http.StatusNotFound })
}

// TestConnectionsOfPeople: operators and viewers together leave connections of the listener to admins and hosts.
func TestConnectionsOfPeople(t *testing.T) {
	cs := &callers{of: map[net.Conn]roles.Who{}, count: map[roles.Who]int{}}
	who := func(name string, role roles.Role) roles.Who {
		return roles.Who{Name: name, Role: role, Via: roles.ViaTLS}
	}
	var last net.Conn
	for i, role := range slices.Concat(slices.Repeat([]roles.Role{roles.Viewer}, mostOfViewers), slices.Repeat([]roles.Role{roles.Operator}, mostOfPeople-mostOfViewers)) {
		if i == mostOfViewers {
			if err := cs.take(new(net.TCPConn), who("vic", roles.Viewer)); refuse.KindOf(err) != refuse.Busy {
				t.Errorf("one viewer more: %v", err)
			}
		}
		last = new(net.TCPConn)
		if err := cs.take(last, who(fmt.Sprint("eve", i%3), role)); err != nil {
			t.Fatal(i, err)
		}
	}
	for _, role := range []roles.Role{roles.Operator, roles.Viewer} {
		if err := cs.take(new(net.TCPConn), who("vic", role)); refuse.KindOf(err) != refuse.Busy {
			t.Errorf("%s: %v", role, err)
		}
	}
	if err := cs.take(new(net.TCPConn), who("node1", roles.Host)); err != nil {
		t.Error(err)
	}
	cs.left(last)
	if err := cs.take(new(net.TCPConn), who("vic", roles.Operator)); err != nil {
		t.Error(err)
	}
}
