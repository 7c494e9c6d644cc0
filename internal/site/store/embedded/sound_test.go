package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestUnreadable: data that cannot be read now are not called damaged, and nobody is told to move them away.
func TestUnreadable(t *testing.T) {
	folder := func(path string) error { return os.MkdirAll(path, 0o700) } // which read(2) refuses with EISDIR
	file := func(path string) error {
		return errors.Join(folder(filepath.Dir(path)), os.WriteFile(path, nil, 0o600))
	} // and open(2) of what is in it with ENOTDIR
	for what, begin := range map[string]func(data string) error{
		"the database":      func(data string) error { return folder(data + "/member/snap/db") },
		"a file of the log": func(data string) error { return folder(data + "/member/wal/0000000000000000-0000000000000000.wal") },
		"the log":           func(data string) error { return file(data + "/member/wal") },
	} {
		data := filepath.Join(t.TempDir(), "data")
		testkit.Must(t, begin(data))
		err := sound(data, time.Millisecond)
		if err == nil || !strings.Contains(err.Error(), data+" cannot be read") || strings.Contains(err.Error(), "mv ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestOpenElsewhere: data that another process has open are said to be that.
func TestOpenElsewhere(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	testkit.Must(t, os.MkdirAll(filepath.Join(data, "member/snap"), 0o700))
	db, err := bbolt.Open(filepath.Join(data, "member/snap/db"), 0o600, nil)
	testkit.Must(t, err)
	defer db.Close()
	if err := sound(data, time.Millisecond); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), data) {
		t.Errorf("got %v", err)
	}
}

// TestEndedStart: who starts can be ended, whatever etcd waits for, and etcd is not begun for one that was ended before.
func TestEndedStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	let := make(chan struct{})
	defer close(let)
	_, err := begin(ctx, func() (*embed.Etcd, error) {
		cancel()
		<-let
		return nil, errors.New("the end of the test")
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := begin(ctx, func() (*embed.Etcd, error) { panic("etcd is begun") }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestQuietConnections: a connection that does not agree on HTTP/2, or makes no call, is ended.
func TestQuietConnections(t *testing.T) {
	const hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" // with settings: RFC 9113, 3.4
	const goAway = 7
	connect := func(silent, idle time.Duration) net.Conn {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testkit.Must(t, err)
		s := grpc.NewServer(options(newGate(nil), silent, idle)...)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		c, err := net.Dial("tcp", l.Addr().String())
		testkit.Must(t, err)
		t.Cleanup(func() { c.Close() })
		testkit.Must(t, c.SetDeadline(time.Now().Add(testkit.Bound())))
		return c
	}
	c := connect(time.Millisecond, time.Hour)
	_, _ = io.WriteString(c, hello[:1])
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("who says one byte stays")
	}
	c = connect(time.Hour, time.Millisecond)
	_, err := io.WriteString(c, hello)
	testkit.Must(t, err)
	for head := make([]byte, 9); head[3] != goAway; { // a frame: its length, type, flags and stream
		if _, err := io.ReadFull(c, head); err != nil {
			t.Fatalf("who makes no call stays: %v", err)
		}
		_, _ = io.CopyN(io.Discard, c, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
	}
}

// TestLines: of what etcd says the warnings come to the agent's log, also by loggers that etcd makes of this one.
func TestLines(t *testing.T) {
	var said []string
	l := logger(func(format string, a ...any) { said = append(said, fmt.Sprintf(format, a...)) }).With(zap.String("member", "a"))
	l.Info("all is well")
	l.Warn("slow disk", zap.String("took", "3s"))
	if len(said) != 1 || said[0] != "etcd: warn: slow disk map[took:3s]" {
		t.Errorf("%q", said)
	}
}
