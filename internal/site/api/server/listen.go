package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// MostConnections is how many connections one listener has open at once. More are closed as soon as they come.
const MostConnections = 1000

// HTTP returns a server for the handler with bounded times and headers, a bound of silent connections for each address, and one of connections
// for each caller.
func HTTP(h http.Handler) *http.Server {
	quiet := &silent{of: map[string][]net.Conn{}}
	all := &callers{of: map[net.Conn]string{}, count: map[string]int{}}
	return &http.Server{
		Handler: all.bound(h),
		ConnState: func(c net.Conn, state http.ConnState) {
			quiet.note(c, state)
			if state == http.StateClosed || state == http.StateHijacked {
				all.left(c)
			}
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(Peer(ctx, c), asker{}, c)
		},
		ReadHeaderTimeout: 10 * time.Second, // also for TLS to agree
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug), // clients that break off: no news
	}
}

// Listen listens for clients at an address of TCP. A client may be slow, or stopped for as long as it likes. One that is gone without a
// word is noticed by keep-alive packets after 75 s, or where bytes are on their way to it when the kernel gives up sending them again
// (net.ipv4.tcp_retries2: some 15 minutes). TCP_USER_TIMEOUT stays 0: the kernel would also end a client that is merely stopped, which
// acknowledges, but with a window of 0 (tcp_probe_timer in net/ipv4/tcp_timer.c).
func Listen(ctx context.Context, address string) (net.Listener, error) {
	c := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 4}}
	return c.Listen(ctx, "tcp", address)
}

// Limit bounds how many connections of a listener are open at once.
func Limit(l net.Listener, most int) net.Listener { return &limited{Listener: l, most: int64(most)} }

type limited struct {
	net.Listener
	most int64
	open atomic.Int64
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Load() < l.most { // a listener has one who accepts
			l.open.Add(1)
			return &counted{Conn: c, done: func() { l.open.Add(-1) }}, nil
		}
		c.Close()
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	once sync.Once
	done func()
}

func (c *counted) Close() error {
	c.once.Do(c.done)
	return c.Conn.Close()
}

// NetConn returns the connection itself: the credentials of the peer are read from it.
func (c *counted) NetConn() net.Conn { return c.Conn }
