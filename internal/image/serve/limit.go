package serve

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// pacer is an answer. The connection of a client that takes nothing of it for a while is ended.
type pacer struct {
	http.ResponseWriter
	quiet  time.Duration
	status int
	sent   int64
}

func (p *pacer) WriteHeader(status int) {
	p.status = status
	p.ResponseWriter.WriteHeader(status)
}

// Write has the deadline for these bytes alone: http.ServeContent writes 32 KiB at a time.
func (p *pacer) Write(b []byte) (int, error) {
	if err := http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(p.quiet)); err != nil {
		return 0, err
	}
	n, err := p.ResponseWriter.Write(b)
	p.sent += int64(n)
	return n, err
}

// limiter bounds the connections, of all clients and of each address. One that is too many is closed at once.
type limiter struct {
	net.Listener
	*places
}

func limited(l net.Listener) net.Listener {
	return &limiter{Listener: l, places: newPlaces(mostConnections, mostOfOne)}
}

// places limits the requests that are served at once: so many in all, and so many from one address.
type places struct {
	most, ofOne int
	mu          sync.Mutex
	all         int
	each        map[string]int
}

func newPlaces(most, ofOne int) *places {
	return &places{most: most, ofOne: ofOne, each: map[string]int{}}
}

// Accept returns the next connection that is not too many.
func (l *limiter) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err == nil && l.take(from) {
			return &counted{Conn: c, give: sync.OnceFunc(func() { l.give(from) })}, nil
		}
		c.Close()
	}
}

func (p *places) take(from string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all >= p.most || p.each[from] >= p.ofOne {
		return false
	}
	p.all++
	p.each[from]++
	return true
}

func (p *places) give(from string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all--
	if p.each[from]--; p.each[from] == 0 {
		delete(p.each, from)
	}
}

// counted is a connection that gives its place back.
type counted struct {
	net.Conn
	give func()
}

func (c *counted) Close() error {
	c.give()
	return c.Conn.Close()
}
