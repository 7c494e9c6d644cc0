package netserve

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Bounds of relays. A connection takes up to six descriptors (its two sockets, and a pipe for each direction).
const (
	mostRelayed  = 1000             // connections, of all nodes
	mostSenders  = 256              // senders of datagrams, of one port
	forgetSender = 60 * time.Second // after its last datagram
	dialWait     = 5 * time.Second
)

// relays copies between the host's loopback and nodes.
type relays struct {
	places chan struct{} // one for each connection
}

func newRelays() *relays { return &relays{places: make(chan struct{}, mostRelayed)} }

// connections relays the connections to a port until the socket is closed. A connection waits while there are too many.
func (r *relays) connections(ctx context.Context, l *net.TCPListener, to netip.AddrPort) {
	for {
		conn, err := l.AcceptTCP()
		if isClosed(ctx, err) {
			return
		}
		if err != nil {
			continue
		}
		select {
		case r.places <- struct{}{}:
		case <-ctx.Done():
			conn.Close()
			return
		}
		go func() {
			defer func() { <-r.places }()
			relay(ctx, conn, to)
		}()
	}
}

// relay connects to the node and copies until both sides have ended, or the port is not the node's any more.
func relay(ctx context.Context, near *net.TCPConn, to netip.AddrPort) {
	defer near.Close()
	dialer := net.Dialer{Timeout: dialWait}
	c, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		_ = near.SetLinger(0) // the host's program sees a reset, as from a port without a listener
		return
	}
	far := c.(*net.TCPConn)
	defer far.Close()
	defer context.AfterFunc(ctx, func() { near.Close(); far.Close() })()
	var both sync.WaitGroup
	for _, way := range [][2]*net.TCPConn{{near, far}, {far, near}} {
		both.Go(func() {
			if _, err := io.Copy(way[1], way[0]); err != nil { // one side is gone
				near.Close()
				far.Close()
				return
			}
			_ = way[1].CloseWrite()
		})
	}
	both.Wait()
}

// packets relays datagrams until the socket is closed.
func (r *relays) packets(ctx context.Context, conn *net.UDPConn, to netip.AddrPort) {
	var mu sync.Mutex
	senders := map[netip.AddrPort]*net.UDPConn{}
	buf := make([]byte, 64<<10)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if isClosed(ctx, err) {
			return
		}
		if err != nil {
			continue
		}
		mu.Lock()
		far, full := senders[from], len(senders) >= mostSenders
		mu.Unlock()
		if far == nil {
			if full {
				continue
			}
			if far, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); err != nil {
				continue
			}
			mu.Lock()
			senders[from] = far
			mu.Unlock()
			go func() {
				answers(ctx, conn, far, from)
				mu.Lock()
				delete(senders, from)
				mu.Unlock()
			}()
		}
		_ = far.SetReadDeadline(time.Now().Add(forgetSender))
		_, _ = far.Write(buf[:n])
	}
}

// answers takes the node's datagrams back to one sender, until neither has sent any for a while.
func answers(ctx context.Context, near, far *net.UDPConn, to netip.AddrPort) {
	defer far.Close()
	defer context.AfterFunc(ctx, func() { far.Close() })()
	buf := make([]byte, 64<<10)
	for {
		n, err := far.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no program listens there; one may when the next datagram comes
			continue
		}
		_ = far.SetReadDeadline(time.Now().Add(forgetSender))
		_, _ = near.WriteToUDPAddrPort(buf[:n], to)
	}
}
