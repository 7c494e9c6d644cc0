package netserve

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Nodes may be hostile: the memory and sockets that they can make this process hold are bounded, in all and for each of them.
const (
	mostAsked     = 256 // queries that wait for the host's resolvers
	mostAskedEach = 32  // of one sender
	mostConns     = 128 // connections for DNS by TCP
	mostConnsEach = 8
	idle          = 5 * time.Second // of such a connection
)

// quota counts how much of something each sender uses.
type quota struct {
	most, each int

	mu   sync.Mutex
	all  int
	used map[netip.Addr]int
}

func newQuota(most, each int) *quota {
	return &quota{most: most, each: each, used: map[netip.Addr]int{}}
}

func (q *quota) take(who netip.Addr) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all >= q.most || q.used[who] >= q.each {
		return false
	}
	q.all++
	q.used[who]++
	return true
}

func (q *quota) give(who netip.Addr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all--
	if q.used[who]--; q.used[who] == 0 {
		delete(q.used, who)
	}
}

// responder answers DNS on the sockets of one bridge.
type responder struct {
	known    atomic.Pointer[table]
	upstream *upstream
	own      *atomic.Pointer[[]netip.Addr] // where this process answers
	asked    *quota
	conns    *quota
}

// serves reports whether a sender is answered: only one on the bridge is.
func (r *responder) serves(t *table, from netip.Addr) bool {
	return t != nil && t.holds(from.Unmap().WithZone(""))
}

// packets answers queries by UDP until the socket is closed.
func (r *responder) packets(ctx context.Context, conn *net.UDPConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if isClosed(ctx, err) {
			return
		}
		t := r.known.Load()
		if err != nil || !r.serves(t, from.Addr()) {
			continue
		}
		reply, ask := t.answer(buf[:n])
		if ask == nil {
			if reply != nil {
				_, _ = conn.WriteToUDPAddrPort(reply, from)
			}
			continue
		}
		if !r.asked.take(from.Addr()) {
			continue // it asks again
		}
		go func() {
			defer r.asked.give(from.Addr())
			if reply := r.upstream.ask(ctx, ask, "udp", *r.own.Load()); reply != nil {
				_, _ = conn.WriteToUDPAddrPort(reply, from)
			}
		}()
	}
}

// connections answers queries by TCP until the socket is closed.
func (r *responder) connections(ctx context.Context, l *net.TCPListener) {
	for {
		conn, err := l.AcceptTCP()
		if isClosed(ctx, err) {
			return
		}
		if err != nil {
			continue
		}
		from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if !r.serves(r.known.Load(), from) || !r.conns.take(from) {
			conn.Close()
			continue
		}
		go func() {
			defer r.conns.give(from)
			defer conn.Close()
			r.connection(ctx, conn)
		}()
	}
}

func (r *responder) connection(ctx context.Context, conn net.Conn) {
	for {
		_ = conn.SetDeadline(time.Now().Add(idle))
		packet, err := readFrame(conn)
		t := r.known.Load()
		if err != nil || t == nil {
			return
		}
		reply, ask := t.answer(packet)
		if ask != nil {
			_ = conn.SetDeadline(time.Now().Add(idle + mostResolvers*patience))
			reply = r.upstream.ask(ctx, ask, "tcp", *r.own.Load())
		}
		if reply == nil || writeFrame(conn, reply) != nil {
			return
		}
	}
}

// isClosed reports whether a socket was closed. After another error, as that of a peer that is gone or when descriptors are
// used up, it waits for a moment and the socket goes on.
func isClosed(ctx context.Context, err error) bool {
	if err == nil {
		return false
	}
	if ctx.Err() != nil {
		return true
	}
	select {
	case <-ctx.Done():
		return true
	case <-time.After(10 * time.Millisecond):
		return false
	}
}
