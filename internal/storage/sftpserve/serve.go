// Package sftpserve is the server's side of gateway sshfs-direct (berth gateway serve): it gives one folder to nodes by SFTP over
// plain sockets, and each client gets a process of OpenSSH's sftp-server, which is not root and sees nothing of the host but the
// folder.
package sftpserve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
)

// Options has the folder to serve, the clients that may connect, and the user that sessions run as.
type Options struct {
	Dir    string
	User   string   // name or number of a user of this host; the sessions run as this user
	Allow  []string // addresses, or prefixes ADDRESS/LENGTH, of the clients that are served
	Listen string   // ADDRESS:PORT; an empty address: all

	// Start starts the process of a client's session and says for which node; nil: fork.Start, for none. If it fails, the client is
	// refused. It is called on a thread that sees nothing of the host's files.
	Start Starter
}

// Port is where sessions are served if nothing else is said.
const Port = 7022

// Program is the server of one session.
const Program = "/usr/lib/openssh/sftp-server"

// perClient is how many sessions one address has at most: a client that opens more is not a node's mount.
const perClient = 64

// Server serves a folder.
type Server struct {
	jail  jail
	allow []netip.Prefix
	addr  string
	log   *slog.Logger
	start Starter

	mu       sync.Mutex
	sessions map[netip.Addr]int
}

// Can refuses a host without the program that serves a session.
func Can() error {
	if _, err := os.Stat(Program); err != nil {
		return refuse.Cannotf("apt install openssh-sftp-server", "this host has no %s, which serves a session: %w", Program, err)
	}
	return nil
}

// New checks the options; nothing is opened yet.
func New(o Options, log *slog.Logger) (*Server, error) {
	s := &Server{addr: o.Listen, log: log, start: o.Start, sessions: map[netip.Addr]int{}}
	if s.start == nil {
		s.start = plain
	}
	if os.Geteuid() != 0 {
		return nil, refuse.Cannotf("run it with sudo", "serve %s as user %s: only root can act as another user", o.Dir, o.User)
	}
	if o.User == "" {
		return nil, refuse.Invalidf("name the user that clients act as with --user USER")
	}
	if len(o.Allow) == 0 {
		return nil, refuse.Invalidf("no client may connect: name at least one with --allow ADDRESS")
	}
	for _, text := range o.Allow {
		p, err := prefix(text)
		if err != nil {
			return nil, err
		}
		s.allow = append(s.allow, p)
	}
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, refuse.Invalidf("--listen %s: want ADDRESS:PORT or :PORT: %w", o.Listen, err)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" {
		return nil, refuse.Invalidf("--listen %s: %q is not an address", o.Listen, host)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return nil, refuse.Invalidf("--listen %s: port %d: want a number of 0 to 65535", o.Listen, n)
	}
	if s.jail.as, err = account(o.User); err != nil {
		return nil, err
	}
	if s.jail.dir, err = folder(o.Dir); err != nil {
		return nil, err
	}
	if err := Can(); err != nil {
		return nil, err
	}
	return s, nil
}

// prefix reads an address or a prefix.
func prefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, refuse.Invalidf("--allow %s: want an address, or a prefix as 10.0.0.0/24", text)
	}
	if p != p.Masked() {
		return p, refuse.Invalidf("--allow %s: bits behind the prefix are set; want %s", text, p.Masked())
	}
	return p, nil
}

// account finds the user of the sessions.
func account(name string) (identity, error) {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		return identity{}, refuse.NotFoundf("--user %s: this host has no such user", name)
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return identity{}, fmt.Errorf("look up user %s: %w", name, err)
	}
	if uid == 0 {
		return identity{}, refuse.Invalidf("--user %s: a session is never root: whoever comes to the port would be; name another user", name)
	}
	id := identity{name: u.Username, uid: uint32(uid), gid: uint32(gid)}
	groups, err := u.GroupIds()
	if err != nil {
		return identity{}, fmt.Errorf("look up the groups of user %s: %w", name, err)
	}
	for _, text := range groups {
		g, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return identity{}, fmt.Errorf("look up the groups of user %s: %w", name, err)
		}
		id.groups = append(id.groups, uint32(g))
	}
	if slices.Contains(id.groups, 0) || id.gid == 0 {
		return identity{}, refuse.Invalidf("--user %s: is in group root, whose rights a session must not have; name another user", name)
	}
	return id, nil
}

// Serve serves until ctx ends; it then ends all sessions. ready is told the address that it listens on.
func (s *Server) Serve(ctx context.Context, ready func(net.Addr)) error {
	listen := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}}
	l, err := listen.Listen(ctx, "tcp", s.addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return refuse.Busyf("listen on %s: %w", s.addr, err)
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.addr, err)
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	// All sessions are forked by one thread that has the jail as its root. If this process is killed, the thread ends, and
	// the sessions with it.
	return thread.Own(func() error {
		if err := s.jail.enter(); err != nil {
			return fmt.Errorf("confine sessions to %s: %w", s.jail.dir, err)
		}
		ready(l.Addr())
		var all sync.WaitGroup
		defer all.Wait()
		return s.accept(ctx, l, &all)
	})
}

func (s *Server) accept(ctx context.Context, l net.Listener, all *sync.WaitGroup) error {
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the listener was closed
		}
		if err != nil { // out of descriptors, or the client is gone already
			s.log.Error("accept a client", "err", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		s.session(ctx, c, all)
	}
}

// session starts the process of one client. It runs on the thread that has the jail.
func (s *Server) session(ctx context.Context, c net.Conn, all *sync.WaitGroup) {
	defer c.Close() // the process has its own descriptors of it
	from := c.RemoteAddr()
	addr := from.(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("")
	if !slices.ContainsFunc(s.allow, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		s.log.Warn("refused: not allowed", "client", from.String())
		return
	}
	if !s.enterClient(addr) {
		s.log.Warn("refused: it has too many sessions", "client", from.String(), "sessions", perClient)
		return
	}
	p, err := s.jail.command(c.(*net.TCPConn))
	node := ""
	if err == nil {
		node, err = s.start(addr, p.cmd)
		p.close()
	}
	if err != nil {
		s.leaveClient(addr)
		s.log.Error("start a session", "client", from.String(), "err", err)
		return
	}
	who := []any{"client", from.String(), "pid", p.cmd.Process.Pid}
	if node != "" {
		who = append(who, "node", node)
	}
	s.log.Info("session", who...)
	all.Go(func() {
		end := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
		err := fork.Wait(p.cmd)
		end()
		s.leaveClient(addr)
		s.log.Info("session ended", append(who, "how", p.cmd.ProcessState.String(), "err", err)...)
	})
}

func (s *Server) enterClient(a netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[a] >= perClient {
		return false
	}
	s.sessions[a]++
	return true
}

func (s *Server) leaveClient(a netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[a]--; s.sessions[a] == 0 {
		delete(s.sessions, a)
	}
}
