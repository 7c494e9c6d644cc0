package wire

import (
	"bytes"
	"context"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// freePort returns a port of which the next one is free as well.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		next, err := net.Listen("tcp", ":"+strconv.Itoa(port+1))
		l.Close()
		if err == nil {
			next.Close()
			return port
		}
	}
	t.Fatal("no two free ports")
	return 0
}

// A peer over loopback: streams in both directions, round trips, and no process left when it is told to end.
func TestRealServe(t *testing.T) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("needs iperf3: apt-get install iperf3")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	port := freePort(t)
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, w, port); w.Close() }()
	line := make([]byte, 200)
	n, err := r.Read(line)
	if err != nil || !strings.Contains(string(line[:n]), strconv.Itoa(port)) {
		t.Fatalf("%q %v %v", line[:n], err, <-ended)
	}
	p, err := Ping(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port+1)), 100*time.Millisecond, 10*time.Millisecond)
	if err != nil || p.Trips < 10 || p.P50 <= 0 || p.P99 < p.P50 || p.RunMillis < 100 {
		t.Errorf("%+v %v", p, err)
	}
	for _, row := range []string{ToPeer, FromPeer} {
		s, err := WithCPU(ctx, (&NetOptions{Port: port}).StreamCommand(row, "127.0.0.1", time.Second, 0))
		if err != nil {
			t.Fatal(err)
		}
		m, err := parseIperf([]byte(s.Stdout), s.CPU)
		if err != nil || m["bits_per_second"] < 1e6 || m["cpu_s_per_gb"] <= 0 {
			t.Errorf("%s: %+v %v", row, m, err)
		}
	}
	if err := Serve(ctx, &bytes.Buffer{}, port); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("twice: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// Somebody else may have taken the port meanwhile: nobody may answer at it as iperf3 does, which takes connections.
	if c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
		c.Close()
		if l, err := net.Listen("tcp", ":"+strconv.Itoa(port)); err != nil {
			t.Errorf("iperf3 has not ended: %v", err)
		} else {
			l.Close()
		}
	}
}

// A peer that takes the connection and stays silent, one that closes it, and one that is not there.
func TestPingSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if p, err := Ping(ctx, l.Addr().String(), time.Second, 0); err == nil || testkit.Measures() && time.Since(begun) > pingWait {
		t.Errorf("silent: %+v %v after %v", p, err, time.Since(begun))
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	if p, err := Ping(t.Context(), l.Addr().String(), time.Second, 0); err == nil {
		t.Errorf("closed: %+v", p)
	}
	l.Close()
	if p, err := Ping(t.Context(), l.Addr().String(), time.Second, 0); err == nil {
		t.Errorf("gone: %+v", p)
	}
}
