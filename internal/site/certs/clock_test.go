package certs

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/spec/roles"
	"berth/test/testkit"
)

// TestClockIsSet: a connection ends with its certificate by the wall clock. Its timer does not: it stands still while the host is suspended.
func TestClockIsSet(t *testing.T) {
	s := newSite(t)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	var ahead atomic.Int64
	l, err := listen(t.Context(), plain, s.host, time.Millisecond, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	testkit.Must(t, err)
	defer l.Close()
	s.answer(t, l)
	ann, err := speak(plain.Addr().String(), s.client(t, s.user(t, "ann", roles.Admin)))
	testkit.Must(t, err)
	defer ann.Close()
	ahead.Store(int64(UserLife - time.Hour))
	testkit.Must(t, echo(ann))
	ahead.Store(int64(UserLife + time.Hour))
	_ = ann.SetDeadline(time.Now().Add(testkit.Bound()))
	if _, err := ann.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the connection goes on: %v", err)
	}
}

// TestPause: a pause is until a time of the wall clock, and none is longer than look, however far that time is.
func TestPause(t *testing.T) {
	now := time.Now()
	for until, want := range map[time.Duration]time.Duration{-time.Hour: -time.Hour, 0: 0, time.Second: time.Second, look: look, 24 * time.Hour: look} {
		if got := pause(now, now.Add(until)); got != want {
			t.Errorf("until a time in %s: %s", until, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if !Pause(ctx, now) {
		t.Error("it says that its context has ended")
	}
	cancel()
	if Pause(ctx, now.Add(24*time.Hour)) {
		t.Error("it says that its time has come")
	}
}
