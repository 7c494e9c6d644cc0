// Package listen makes the listeners that other hosts reach, with bounds of how many connections are open at once: in all, and from one address. It
// serves and relays connections.
package listen

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// TCP listens for clients at an address of TCP. A client may be slow, or stopped for as long as it likes. One that is gone without a
// word is noticed by keep-alive packets after 75 s, or where bytes are on their way to it when the kernel gives up sending them again
// (net.ipv4.tcp_retries2: some 15 minutes). TCP_USER_TIMEOUT stays 0: the kernel would also end a client that is merely stopped, which
// acknowledges, but with a window of 0 (tcp_probe_timer in net/ipv4/tcp_timer.c).
func TCP(ctx context.Context, address string) (net.Listener, error) {
	c := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 4}}
	return c.Listen(ctx, "tcp", address)
}

// Bounded is a listener of which only so many connections are open at once. More are closed as soon as they come.
type Bounded struct {
	net.Listener
	all, each int

	mu   sync.Mutex
	open int
	of   map[netip.Prefix]int
}

// Bound bounds a listener: all connections together, and those of each address (0: these have no bound of their own). A network of IPv6 (/64), of
// which one machine may have every address, has half of all. On a listener at the loopback, where all connections come from this host, each does
// not count.
func Bound(l net.Listener, all, each int) *Bounded {
	if at, ok := l.Addr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
		each = 0
	}
	return &Bounded{Listener: l, all: all, each: each, of: map[netip.Prefix]int{}}
}

// Open returns how many connections are open.
func (b *Bounded) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// Accept returns the next connection that is not too many.
func (b *Bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		in := b.shares(c)
		if b.take(in) {
			return &counted{Conn: c, done: func() { b.giveBack(in) }}, nil
		}
		c.Close()
	}
}

// share is a range of addresses, and the most connections of it.
type share struct {
	of   netip.Prefix
	most int
}

// shares returns the ranges that a connection counts in.
func (b *Bounded) shares(c net.Conn) []share {
	at, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || b.each == 0 {
		return nil
	}
	switch ip := at.AddrPort().Addr().Unmap(); {
	case ip.IsLoopback(): // a user of this host has all of these addresses
		return []share{{netip.MustParsePrefix("127.0.0.0/8"), b.each}}
	case ip.Is4():
		return []share{{netip.PrefixFrom(ip, 32), b.each}}
	default:
		return []share{{netip.PrefixFrom(ip, 128), b.each}, {netip.PrefixFrom(ip, 64).Masked(), b.all / 2}}
	}
}

func (b *Bounded) take(in []share) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open >= b.all || slices.ContainsFunc(in, func(s share) bool { return b.of[s.of] >= s.most }) {
		return false
	}
	b.open++
	for _, s := range in {
		b.of[s.of]++
	}
	return true
}

func (b *Bounded) giveBack(in []share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	for _, s := range in {
		if b.of[s.of]--; b.of[s.of] == 0 {
			delete(b.of, s.of)
		}
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

// acceptAgain is the pause after an Accept that failed.
const acceptAgain = 100 * time.Millisecond

// Serve gives each connection of a listener to answer, in a goroutine of its own, until the listener is closed. Where none can be accepted, as when
// this process has no descriptor left, it says so once, and goes on when one can.
func Serve(l net.Listener, say func(format string, a ...any), answer func(net.Conn)) {
	for told := false; ; {
		c, err := l.Accept()
		switch {
		case err == nil:
			told = false
			go answer(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			if !told {
				say("no connection is accepted until this has passed: %v", err)
			}
			told = true
			time.Sleep(acceptAgain)
		}
	}
}

// relayed is how many bytes Relay holds for each direction of a connection.
const relayed = 4 << 10

// Relay passes on what a connection and the one that dial makes say to each other, until one of them is closed. A connection that says nothing within
// silent is closed before.
func Relay(c net.Conn, silent time.Duration, dial func() (net.Conn, error)) {
	defer c.Close()
	said := make([]byte, relayed)
	_ = c.SetReadDeadline(time.Now().Add(silent))
	n, err := c.Read(said)
	if err != nil {
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	to, err := dial()
	if err != nil {
		return
	}
	defer to.Close()
	if _, err := to.Write(said[:n]); err != nil {
		return
	}
	go func() {
		_, _ = io.CopyBuffer(to, c, said)
		to.Close()
		c.Close()
	}()
	_, _ = io.CopyBuffer(c, to, make([]byte, relayed))
}
