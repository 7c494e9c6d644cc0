package server

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"

	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// webSocket is the value of route.streams for a route that becomes a websocket.
const webSocket = "websocket"

// The most streams and commands that one caller has open at once.
const (
	mostCommands = 16  // commands, of a caller who is no admin
	mostOwn      = 256 // commands of an admin: a script that goes wrong
	mostStreams  = 64  // logs and events
)

// The most requests of one caller that are answered at once, streams not counted. A request whose answer is still being sent counts.
// More requests wait for their turn, up to mostWaiting.
const (
	mostTurns   = 16  // reads, of a caller who is no admin
	mostActs    = 64  // acts, of a caller who is no admin; an act may wait for a node to stop
	mostOwnActs = 256 // of an admin, reads or acts
	mostReports = 2   // of a file server
	mostWaiting = 256
)

// mostSilent is how many connections of one address have not sent a request yet, nor agreed on TLS.
const mostSilent = 64

// mostOfOne is the most connections that one caller who is no admin has open at an agent, those that became websockets not counted. All
// requests that the other bounds let a caller make at once fit in, but for those that wait.
const mostOfOne = 400

// mostOfPeople is the most connections that all operators and viewers together have open at an agent, and mostOfViewers all viewers, counted as
// mostOfOne is: the others are for admins, hosts, websockets (mostCommands of each caller) and connections that have asked nothing yet, and what viewers
// may not have is for operators, as Slurm's programs are.
const (
	mostOfPeople  = 800
	mostOfViewers = 600
)

// bounds counts what callers have open.
type bounds struct {
	mu    sync.Mutex
	open  map[string]int
	turns map[string]*turns
}

// turns are one caller's requests of one kind.
type turns struct {
	free  chan struct{} // as many as may be answered at once: a request puts one in, and takes it out
	asked int           // requests that are answered, or wait
}

// turn waits until one more request of a caller may be answered. Until then the request's body is not read, and nothing is
// answered.
func (b *bounds) turn(ctx context.Context, w roles.Who, what string, most int) (back func(), err error) {
	key := what + " of " + w.String() + " by " + w.Via
	b.mu.Lock()
	t := b.turns[key]
	if t == nil {
		if b.turns == nil {
			b.turns = map[string]*turns{}
		}
		t = &turns{free: make(chan struct{}, most)}
		b.turns[key] = t
	}
	if t.asked >= most+mostWaiting {
		b.mu.Unlock()
		return nil, &statusError{http.StatusTooManyRequests, refuse.Busyf("%s has %d %s here that wait for an answer, which is the most at once", w, t.asked, what)}
	}
	t.asked++
	b.mu.Unlock()
	leave := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if t.asked--; t.asked == 0 {
			delete(b.turns, key)
		}
	}
	select {
	case t.free <- struct{}{}:
		return func() { <-t.free; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// turnOf waits for the turn of a request that is no stream.
func (b *bounds) turnOf(w roles.Who, req *http.Request) (back func(), err error) {
	what, most := "acts", mostActs
	if req.Method == http.MethodGet {
		what, most = "reads", mostTurns
	}
	if w.Role == roles.Admin {
		most = mostOwnActs
	}
	return b.turn(req.Context(), w, what, most)
}

// take counts one more for a caller, until it is given back.
func (b *bounds) take(w roles.Who, stream string) (back func(), err error) {
	most, what := mostStreams, "logs and events"
	if stream == webSocket {
		most, what = mostCommands, "commands"
		if w.Role == roles.Admin {
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

// silent ends the oldest connection without a request of an address that has too many of them, so that they do not keep out another client
// of the same address.
type silent struct {
	mu sync.Mutex
	of map[string][]net.Conn // the oldest first
}

// note is http.Server.ConnState. A connection that it closes is told as closed, too.
func (s *silent) note(c net.Conn, state http.ConnState) {
	at, tcp := c.RemoteAddr().(*net.TCPAddr)
	if !tcp {
		return
	}
	if oldest := s.change(c, from(at.IP), state == http.StateNew); oldest != nil {
		oldest.Close()
	}
}

// change counts a connection, or counts it no more. It returns the one that is too many.
func (s *silent) change(c net.Conn, address string, add bool) (oldest net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.of[address]
	switch i := slices.Index(all, c); {
	case add:
		all = append(all, c)
	case i < 0: // it has asked before, or was too many
		return nil
	default:
		all = slices.Delete(all, i, i+1)
	}
	if len(all) > mostSilent {
		oldest, all = all[0], slices.Delete(all, 0, 1)
	}
	if s.of[address] = all; len(all) == 0 {
		delete(s.of, address)
	}
	return oldest
}

// from returns the range of addresses that counts as one address: all that a single machine, or a user of it, may have.
func from(ip net.IP) string {
	switch {
	case ip.IsLoopback():
		return "loopback"
	case ip.To4() == nil:
		return ip.Mask(net.CIDRMask(64, 128)).String()
	}
	return ip.String()
}

// asker is the key of the connection that a request came over.
type asker struct{}

// callers refuses requests on connections that their caller has too many of: all callers share the listener's MostConnections.
type callers struct {
	mu      sync.Mutex
	of      map[net.Conn]roles.Who
	count   map[roles.Who]int
	people  int // connections of operators and viewers
	viewers int // of them, those of viewers
}

// isPerson reports whether a caller is one of those whose connections have a bound together.
func isPerson(w roles.Who) bool { return w.Role == roles.Operator || w.Role == roles.Viewer }

// bound answers requests as next does, on the first mostOfOne connections of a caller. It ends the others.
func (cs *callers) bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, known := req.Context().Value(asker{}).(net.Conn)
		if who, err := Identify(req); known && err == nil && who.Role != roles.Admin {
			if err := cs.take(c, who); err != nil {
				w.Header().Set("Connection", "close")
				write(w, problemOf(&statusError{http.StatusTooManyRequests, err}))
				return
			}
		}
		next.ServeHTTP(w, req)
	})
}

// take counts a connection for its caller; it refuses one that is more than are allowed.
func (cs *callers) take(c net.Conn, who roles.Who) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if _, counted := cs.of[c]; counted {
		return nil
	}
	if cs.count[who] >= mostOfOne {
		return refuse.Busyf("%s has %d connections open here, which is the most at once", who, mostOfOne)
	}
	if isPerson(who) {
		if cs.people >= mostOfPeople {
			return refuse.Busyf("operators and viewers have %d connections open here, which is the most at once", mostOfPeople)
		}
		if who.Role == roles.Viewer {
			if cs.viewers >= mostOfViewers {
				return refuse.Busyf("viewers have %d connections open here, which is the most at once", mostOfViewers)
			}
			cs.viewers++
		}
		cs.people++
	}
	cs.of[c] = who
	cs.count[who]++
	return nil
}

// left forgets a connection that is closed, or became a websocket.
func (cs *callers) left(c net.Conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if who, counted := cs.of[c]; counted {
		delete(cs.of, c)
		if isPerson(who) {
			cs.people--
			if who.Role == roles.Viewer {
				cs.viewers--
			}
		}
		if cs.count[who]--; cs.count[who] == 0 {
			delete(cs.count, who)
		}
	}
}
