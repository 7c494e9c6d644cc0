package netserve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// server is the process.
type server struct {
	listener *net.UnixListener
	upstream *upstream
	asked    *quota
	conns    *quota
	relays   *relays

	mu      sync.Mutex
	nodes   map[string]*Entry
	needs   map[string][]socket // by node
	bridges map[string]*responder
	sockets map[string]func() // by key: the function that closes the socket
	began   bool              // it has served a node
	own     atomic.Pointer[[]netip.Addr]
}

// startGrace is how long a process waits for its first node: the command that started it may have been killed.
const startGrace = 10 * time.Second

// Run is the process. fd is the socket on which root talks to it. Run returns when no node is left.
func Run(ctx context.Context, fd int) error {
	f := os.NewFile(uintptr(fd), "control")
	l, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("serve names: %w", err)
	}
	control, ok := l.(*net.UnixListener)
	if !ok {
		return errors.New("serve names: started without its socket: the nodes start it")
	}
	if err := confine(); err != nil {
		return fmt.Errorf("serve names: give up root's rights: %w", err)
	}
	s := &server{
		listener: control, upstream: &upstream{file: "/etc/resolv.conf"},
		asked: newQuota(mostAsked, mostAskedEach), conns: newQuota(mostConns, mostConnsEach), relays: newRelays(),
		nodes: map[string]*Entry{}, needs: map[string][]socket{}, bridges: map[string]*responder{}, sockets: map[string]func(){},
	}
	defer context.AfterFunc(ctx, func() { control.Close() })()
	time.AfterFunc(startGrace, s.endUnused)
	for {
		c, err := control.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if who, err := peer(c); err != nil || who.Uid != 0 {
			c.Close()
			continue
		}
		go s.talk(c)
	}
}

func (s *server) endUnused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.began {
		s.listener.Close()
	}
}

// talk answers the requests of one connection. Sockets that came and are in no entry are closed at its end.
func (s *server) talk(c *net.UnixConn) {
	defer c.Close()
	extra := map[string]*os.File{}
	defer func() { closeAll(slices.Collect(maps.Values(extra))) }()
	for {
		var q request
		files, err := receive(c, &q)
		if err != nil {
			return
		}
		for i, f := range files {
			if i >= len(q.Keys) || extra[q.Keys[i]] != nil {
				f.Close()
				continue
			}
			extra[q.Keys[i]] = f
		}
		r := s.do(&q, extra)
		r.PID = os.Getpid()
		if err := send(c, r); err != nil {
			return
		}
		if r.Last {
			s.listener.Close()
			return
		}
	}
}

func (s *server) do(q *request, extra map[string]*os.File) (r reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch q.Do {
	case doLacks:
		for _, k := range q.Keys {
			if s.sockets[k] == nil {
				r.Keys = append(r.Keys, k)
			}
		}
		for _, n := range q.Nodes {
			if s.nodes[n] == nil {
				r.Nodes = append(r.Nodes, n)
			}
		}
	case doSockets:
	case doSet:
		if q.Entry == nil {
			return reply{Err: "no entry"}
		}
		for _, n := range q.Needs {
			if s.sockets[n.key()] == nil && extra[n.key()] == nil {
				return reply{Err: "socket " + n.key() + " is missing"}
			}
		}
		s.began = true
		s.nodes[q.Entry.Node], s.needs[q.Entry.Node] = q.Entry, q.Needs
		if err := s.renew(extra); err != nil {
			return reply{Err: err.Error()}
		}
	case doDrop:
		delete(s.nodes, q.Node)
		delete(s.needs, q.Node)
		_ = s.renew(nil) // nothing is opened
		r.Last = len(s.nodes) == 0
	default:
		r.Err = "unknown request " + q.Do
	}
	return r
}

// renew brings tables and sockets in line with the nodes.
func (s *server) renew(extra map[string]*os.File) error {
	all := tables(s.nodes)
	for name, t := range all {
		if s.bridges[name] == nil {
			s.bridges[name] = &responder{upstream: s.upstream, own: &s.own, asked: s.asked, conns: s.conns}
		}
		s.bridges[name].known.Store(t)
	}
	maps.DeleteFunc(s.bridges, func(name string, _ *responder) bool { return all[name] == nil })
	var own []netip.Addr
	needed := map[string]socket{}
	for node, e := range s.nodes {
		for _, n := range s.needs[node] {
			needed[n.key()] = n
		}
		for _, n := range e.Names {
			own = append(own, n.Bridge.At...)
		}
	}
	slices.SortFunc(own, netip.Addr.Compare)
	own = slices.Compact(own)
	s.own.Store(&own)
	for key, end := range s.sockets {
		if _, ok := needed[key]; !ok {
			end()
			delete(s.sockets, key)
		}
	}
	for key, n := range needed {
		if s.sockets[key] != nil {
			continue
		}
		end, err := s.open(n, extra[key])
		if err != nil {
			return fmt.Errorf("socket %s: %w", key, err)
		}
		s.sockets[key] = end
	}
	return nil
}

// open begins to serve a socket. end closes it, and the connections that came by it.
func (s *server) open(n socket, f *os.File) (end func(), err error) {
	if f == nil {
		return nil, errors.New("it is missing")
	}
	ctx, cancel := context.WithCancel(context.Background())
	var c io.Closer
	if n.Proto == "tcp" {
		var l net.Listener
		if l, err = net.FileListener(f); err == nil {
			c = l
			s.listen(ctx, n, l)
		}
	} else {
		var p net.PacketConn
		if p, err = net.FilePacketConn(f); err == nil {
			c = p
			s.read(ctx, n, p)
		}
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return func() { cancel(); c.Close() }, nil
}

func (s *server) listen(ctx context.Context, n socket, l net.Listener) {
	t, ok := l.(*net.TCPListener)
	switch {
	case !ok:
	case n.Bridge != "":
		go s.bridges[n.Bridge].connections(ctx, t)
	default:
		go s.relays.connections(ctx, t, n.To)
	}
}

func (s *server) read(ctx context.Context, n socket, c net.PacketConn) {
	u, ok := c.(*net.UDPConn)
	switch {
	case !ok:
	case n.Bridge != "":
		go s.bridges[n.Bridge].packets(ctx, u)
	default:
		go s.relays.packets(ctx, u, n.To)
	}
}
