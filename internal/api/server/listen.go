package server

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// MostConnections is how many connections one listener has open at once. More are closed as soon as they come.
const MostConnections = 1000

// HTTP returns a server for the handler with bounded times and headers, and a bound of silent connections for each address.
func HTTP(h http.Handler) *http.Server {
	quiet := &silent{of: map[net.Conn]string{}, count: map[string]int{}}
	return &http.Server{
		Handler:           h,
		ConnState:         quiet.note,
		ConnContext:       Peer,
		ReadHeaderTimeout: 10 * time.Second, // also for TLS to agree
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug), // clients that break off: no news
	}
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

// NetConn returns the connection itself: of it the peer's identity is asked.
func (c *counted) NetConn() net.Conn { return c.Conn }
