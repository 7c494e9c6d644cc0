package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"berth/internal/spec/roles"
)

// MostConnections is how many connections one listener has open at once. More are closed as soon as they come.
const MostConnections = 1000

// HTTP returns a server for the handler with bounded times and headers, a bound of silent connections for each address, and one of connections
// for each caller.
func HTTP(h http.Handler) *http.Server {
	quiet := &silent{of: map[string][]net.Conn{}}
	all := &callers{of: map[net.Conn]roles.Who{}, count: map[roles.Who]int{}}
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
