package server

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
	"golang.org/x/sys/unix"

	"berth/internal/node/events"
	"berth/internal/site/api"
	"berth/internal/site/iosync/allot"
	"berth/internal/site/listen"
	"berth/internal/spec/roles"
	"berth/test/testkit"
)

// TestEmptyMessages: a client that fills the window of a command's input and goes on with messages that hold no input makes the agent
// keep no more than the window.
func TestEmptyMessages(t *testing.T) {
	const messages = 20_000
	h := &runs{program: []string{"/bin/sh", "-c", `trap "echo heard" USR1; echo ready; while :; do sleep 0.01; done`, "berth"}}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Bound())
	defer cancel()
	ws, _, err := websocket.Dial(ctx, serving(t, &Server{Host: h}, roles.Who{Name: "eve", Role: roles.Viewer, Via: roles.ViaTLS})+"/v1/command", nil)
	if err == nil {
		defer func() { _ = ws.CloseNow() }()
		err = wsjson.Write(ctx, ws, api.Start{Args: []string{"ls"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	// output waits until the command has written something.
	output := func() {
		t.Helper()
		for {
			kind, _, err := ws.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if kind == websocket.MessageBinary {
				return
			}
		}
	}
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	output()
	send := func(p []byte) {
		if err := ws.Write(ctx, websocket.MessageBinary, p); err != nil {
			t.Fatal(err)
		}
	}
	for range (api.Window - 1) / (api.Chunk / 2) { // a byte less than the window at least
		send(make([]byte, 1+api.Chunk/2))
	}
	before := memory()
	for range messages {
		send([]byte{api.Stdin})
	}
	if err := wsjson.Write(ctx, ws, api.Control{Signal: "SIGUSR1"}); err != nil {
		t.Fatal(err)
	}
	output() // all of it was heard
	if after := memory(); after > before+4<<20 {
		t.Errorf("the agent holds %d KiB more after %d empty messages", (after-before)>>10, messages)
	}
}

// undue notes deadlines of a request and its answer, and which one holds.
type undue struct {
	*httptest.ResponseRecorder
	reads []time.Time
	holds time.Time // for what is written
	late  int       // writes with a deadline
}

func (u *undue) Write(p []byte) (int, error) {
	if !u.holds.IsZero() {
		u.late++
	}
	return u.ResponseRecorder.Write(p)
}

func (u *undue) SetReadDeadline(at time.Time) error {
	if !at.IsZero() {
		u.reads = append(u.reads, at)
	}
	return nil
}

func (u *undue) SetWriteDeadline(at time.Time) error {
	u.holds = at
	return nil
}

// looking is a host that looks at something while a node starts.
type looking struct {
	acting
	during func()
}

func (l *looking) Start(context.Context, string, roles.Owner) (bool, error) {
	l.during()
	return true, nil
}

// TestNoDeadline: what is sent of a stream has no deadline. A reader who pauses, for however long, loses nothing. Nor has an act, which
// would be given up at it; its answer has one.
func TestNoDeadline(t *testing.T) {
	f := events.File{Dir: filepath.Join(t.TempDir(), "events")}
	if err := f.Append([]events.Event{{Time: time.Unix(1, 0), Node: "n", Event: events.Started}}, false); err != nil {
		t.Fatal(err)
	}
	answer := &undue{ResponseRecorder: httptest.NewRecorder()}
	req := httptest.NewRequest(http.MethodGet, "/v1/events", nil)
	(&Server{Host: &fake{file: f}}).Handler().ServeHTTP(answer, req.WithContext(context.WithValue(t.Context(), peer{}, admin())))
	if answer.Code != http.StatusOK || answer.Body.Len() == 0 || answer.late > 0 || !answer.holds.IsZero() {
		t.Errorf("%d, %d bytes, %d writes with a deadline", answer.Code, answer.Body.Len(), answer.late)
	}
	for _, body := range []string{"", "{}"} {
		answer := &undue{ResponseRecorder: httptest.NewRecorder()}
		req := httptest.NewRequest(http.MethodPost, "/v1/nodes/n/start", strings.NewReader(body))
		h := &looking{during: func() {
			if !answer.holds.IsZero() {
				t.Errorf("start with body %q has the deadline %v", body, answer.holds)
			}
		}}
		(&Server{Host: h}).Handler().ServeHTTP(answer, req.WithContext(context.WithValue(t.Context(), peer{}, admin())))
		if answer.Code != http.StatusOK || (len(answer.reads) > 0) != (body != "") || answer.late == 0 {
			t.Errorf("start with body %q: %d, deadlines %v to read, the answer %d", body, answer.Code, answer.reads, answer.late)
		}
	}
}

// TestNoDeadlineOfHosts: what hosts ask for has no deadline while it is done, however long it waited for its turn; the answer has one.
func TestNoDeadlineOfHosts(t *testing.T) {
	host := roles.Who{Name: "h", Role: roles.Host, Via: roles.ViaTLS}
	for at, body := range map[string]string{"/v1/sync/report": `{"host":"h"}`, "/v1/certificates/renew": "x"} {
		answer := &undue{ResponseRecorder: httptest.NewRecorder()}
		during := func() {
			if !answer.holds.IsZero() {
				t.Errorf("%s has the deadline %v", at, answer.holds)
			}
		}
		renewal := Renewal(nil, nil)
		s := &Server{
			Host:    &fake{},
			Reports: Reports(func(allot.Report) (allot.Order, error) { during(); return allot.Order{}, nil }),
			Renew:   http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { during(); renewal.ServeHTTP(w, req) }),
		}
		req := httptest.NewRequest(http.MethodPost, at, strings.NewReader(body))
		s.Handler().ServeHTTP(answer, req.WithContext(context.WithValue(t.Context(), peer{}, host)))
		if len(answer.reads) == 0 || answer.late == 0 {
			t.Errorf("%s: %d %s; deadlines %v to read, the answer %d", at, answer.Code, answer.Body, answer.reads, answer.late)
		}
	}
}

// TestGoneClient: of a connection the kernel is asked to notice a client that is gone, and not to end one that only takes nothing.
func TestGoneClient(t *testing.T) {
	l, err := listen.TCP(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	c, err := listen.Bound(l, 1, 0).Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(interface{ NetConn() net.Conn }).NetConn().(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct {
		name                string
		level, option, want int
	}{
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.SOL_TCP, unix.TCP_KEEPIDLE, 15},
		{"TCP_KEEPINTVL", unix.SOL_TCP, unix.TCP_KEEPINTVL, 15},
		{"TCP_KEEPCNT", unix.SOL_TCP, unix.TCP_KEEPCNT, 4},
		{"TCP_USER_TIMEOUT", unix.SOL_TCP, unix.TCP_USER_TIMEOUT, 0},
	} {
		if err := raw.Control(func(fd uintptr) {
			if is, err := unix.GetsockoptInt(int(fd), o.level, o.option); is != o.want || err != nil {
				t.Errorf("%s is %d, want %d: %v", o.name, is, o.want, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}
