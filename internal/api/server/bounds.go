package server

import (
	"net"
	"net/http"
	"sync"

	"berth/internal/may"
	"berth/internal/refuse"
)

// webSocket is what a route streams that becomes a websocket.
const webSocket = "websocket"

// The bounds of one caller: what he has open at once.
const (
	mostCommands = 16  // of who is no admin
	mostOwn      = 256 // commands of an admin: a script that goes wrong
	mostStreams  = 64  // logs and events
)

// mostSilent is how many connections of one address have not sent a request yet, nor agreed on TLS.
const mostSilent = 64

// bounds counts what callers have open.
type bounds struct {
	mu   sync.Mutex
	open map[string]int
}

// take counts one more for a caller, until it is given back.
func (b *bounds) take(w may.Who, stream string) (back func(), err error) {
	most, what := mostStreams, "logs and events"
	if stream == webSocket {
		most, what = mostCommands, "commands"
		if w.Role == may.Admin {
			most = mostOwn
		}
	}
	key := what + " of " + w.String() + " by " + w.Via
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[key] >= most {
		return nil, &statusError{http.StatusTooManyRequests, refuse.Busyf("%s has %d %s open here, which is the most at once", w, most, what)}
	}
	if b.open == nil {
		b.open = map[string]int{}
	}
	b.open[key]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.open[key]--; b.open[key] == 0 {
			delete(b.open, key)
		}
	}, nil
}

// silent ends connections of an address that has too many on which nothing was asked.
type silent struct {
	mu    sync.Mutex
	of    map[net.Conn]string
	count map[string]int
}

// note is http.Server.ConnState. A connection that it closes is told as closed, too.
func (s *silent) note(c net.Conn, state http.ConnState) {
	at, tcp := c.RemoteAddr().(*net.TCPAddr)
	if !tcp {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == http.StateNew {
		address := at.IP.String()
		s.of[c] = address
		if s.count[address]++; s.count[address] > mostSilent {
			c.Close()
		}
		return
	}
	if address, ok := s.of[c]; ok {
		delete(s.of, c)
		if s.count[address]--; s.count[address] == 0 {
			delete(s.count, address)
		}
	}
}
