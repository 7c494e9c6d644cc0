// Package embedded runs an etcd of one member in this process: the cluster state of a site that brings none of its own.
package embedded

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"berth/internal/site/listen"
	"berth/internal/site/store/etcd"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
)

// Config has the place of the data, the address for other hosts, and which of them may connect.
type Config struct {
	Dir    string // of the data; only root reads it
	Listen string // ADDRESS:PORT for other hosts, by TLS, ADDRESS an IP address; "": none

	// For Listen. A host gets its rights (etcd.Rights) when it first shows a certificate that Allowed lets pass. Allowed is asked at
	// each call and each message of a stream: a certificate that is revoked or over while its connection is open says no more.
	CA, Cert, Key string
	Allowed       func(*x509.Certificate) error

	Log func(format string, a ...any) // warnings of etcd; may be nil
}

// The bounds of an embedded etcd.
const (
	quota   = 1 << 30          // bytes of the database
	retain  = "1h"             // how long older changes are known
	request = 4 << 20          // bytes of a commit
	start   = 60 * time.Second // how long the start may take, with a long log to read
	giveUp  = 3 * time.Second  // how long the end of one that did not start may take
)

// Server is a running etcd.
type Server struct {
	etcd           *embed.Etcd
	unix           string // endpoint
	user, password string
	gate           *gate
	others         net.Listener // for other hosts; nil: there is none
	ending         atomic.Bool  // what etcd says of its own end is no warning
}

// Start runs an etcd and returns once it answers. Its data are made if there are none.
func Start(ctx context.Context, c Config) (*Server, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the cluster state: %w", err)
	}
	socket, err := filepath.Abs(filepath.Join(c.Dir, "socket"))
	if err != nil {
		return nil, fmt.Errorf("find the folder of the cluster state: %w", err)
	}
	if err := sound(filepath.Join(c.Dir, "data"), lockWait); err != nil {
		return nil, err
	}
	s := &Server{unix: "unix:" + socket, gate: newGate(c.Allowed)}
	if say := c.Log; say != nil {
		c.Log = func(format string, a ...any) {
			if !s.ending.Load() {
				say(format, a...)
			}
		}
	}
	if c.Listen != "" {
		if s.others, err = listen.TCP(ctx, c.Listen); err != nil {
			return nil, refuse.Cannotf("ss -ltnp shows what listens there; the agent's file names another address or port in store.embedded.listen",
				"start the cluster state at %s: %w", c.Listen, err)
		}
	}
	if s.etcd, err = begin(ctx, func() (*embed.Etcd, error) { return embed.StartEtcd(c.etcd(socket, s.gate)) }); err != nil {
		s.refuse()
		if !errors.Is(err, context.Canceled) {
			err = &refuse.Error{Kind: refuse.Failed, What: fmt.Sprintf("start the cluster state in %s: %v", c.Dir, err), Remedy: "if its data are damaged, restore a backup: docs/cluster-state.md", Err: err}
		}
		return nil, err
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
	case err = <-s.etcd.Err():
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(start):
		err = fmt.Errorf("it is not ready after %s", start)
	}
	if err == nil {
		err = s.protect(ctx, c)
	}
	if err == nil && s.others != nil {
		s.relay(c, tlsSocket(socket))
	}
	if err != nil {
		ended := make(chan struct{})
		go func() { s.Close(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(giveUp): // it waits for what does not come; it ends with this process
		}
		return nil, fmt.Errorf("start the cluster state in %s: %w", c.Dir, err)
	}
	return s, nil
}

// relay lets other hosts reach the socket where etcd answers them.
func (s *Server) relay(c Config, socket string) {
	say := c.Log
	if say == nil {
		say = func(string, ...any) {}
	}
	most := connections()
	bounded := listen.Bound(s.others, most, most/8)
	dial := func() (net.Conn, error) { return net.Dial("unix", socket) }
	go listen.Serve(bounded, say, func(c net.Conn) { listen.Relay(c, silent, dial) })
}

// begin starts an etcd. It does not wait for one when ctx has ended: etcd itself does not hear of that.
func begin(ctx context.Context, start func() (*embed.Etcd, error)) (*embed.Etcd, error) {
	type outcome struct {
		etcd *embed.Etcd
		err  error
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	began := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if p := recover(); p != nil {
				o.err = fmt.Errorf("etcd failed: %v", p)
			}
			began <- o
		}()
		o.etcd, o.err = start()
	}()
	select {
	case o := <-began:
		return o.etcd, o.err
	case <-ctx.Done():
		go func() {
			if o := <-began; o.etcd != nil {
				o.etcd.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// etcd returns the configuration of the etcd that runs here. It listens for no peers: it is the only member.
func (c Config) etcd(socket string, gate *gate) *embed.Config {
	e := embed.NewConfig()
	e.Name, e.Dir = member, filepath.Join(c.Dir, "data")
	e.ListenPeerUrls = nil
	e.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: peerAt}}
	e.InitialCluster = member + "=http://" + peerAt
	e.ListenClientUrls = []url.URL{{Scheme: "unix", Path: socket}}
	e.AdvertiseClientUrls = e.ListenClientUrls
	if c.Listen != "" {
		e.ListenClientUrls = append(e.ListenClientUrls, url.URL{Scheme: "unixs", Path: tlsSocket(socket)})
		e.ClientTLSInfo = transport.TLSInfo{
			CertFile: c.Cert, KeyFile: c.Key, ClientCertAuth: true, TrustedCAFile: c.CA,
			SkipClientSANVerify: true, // a host's addresses are not in its certificate's client half: its name is what counts
		}
		e.TlsMinVersion = "TLS1.3"
		// With a place of its own for HTTP, etcd's metrics and versions are not at the address that other hosts reach.
		e.ListenClientHttpUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(filepath.Dir(socket), "http")}}
	}
	e.EnableGRPCGateway = false
	e.QuotaBackendBytes, e.MaxRequestBytes = quota, request
	e.AutoCompactionMode, e.AutoCompactionRetention = embed.CompactorModePeriodic, retain
	e.GRPCAdditionalServerOptions = options(gate, silent, idle)
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger(c.Log))
	return e
}

// options returns what etcd's server of gRPC is to do beside its own: it asks the gate, and ends connections that have not agreed on TLS and HTTP/2
// within silent, or make no call for idle.
func options(gate *gate, silent, idle time.Duration) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(gate.unary), grpc.ChainStreamInterceptor(gate.stream), grpc.ConnectionTimeout(silent),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idle, Time: embed.DefaultGRPCKeepAliveInterval, Timeout: embed.DefaultGRPCKeepAliveTimeout}),
	}
}

// The only member's name, and the address that it would have for others if there were any.
const (
	member = "berth"
	peerAt = "localhost:2380"
)

// protect turns on etcd's authentication, once other hosts can reach it. A client of the unix socket is root, and reads the
// password of etcd's user root.
func (s *Server) protect(ctx context.Context, c Config) error {
	known, err := readPassword(c.Dir)
	if errors.Is(err, fs.ErrNotExist) && c.Listen == "" {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		known = rand.Text()
		err = file.Write(passwordFile(c.Dir), []byte(known), 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the password of the cluster state: %w", err)
	}
	open, err := etcd.Open(etcd.Config{Endpoints: []string{s.unix}})
	if err != nil {
		return err
	}
	defer open.Close()
	protected, err := open.Protected(ctx)
	if err == nil && !protected {
		err = open.Protect(ctx, known)
	}
	if err != nil {
		return err
	}
	s.user, s.password = "root", known
	admin, err := s.Client()
	if err == nil {
		s.gate.open(admin)
	}
	return err
}

// Client returns a client that may do everything. The caller closes it.
func (s *Server) Client() (*etcd.Store, error) {
	return etcd.Open(etcd.Config{Endpoints: []string{s.unix}, User: s.user, Password: s.password})
}

// Open returns a client of the embedded etcd that another process runs in a folder.
func Open(dir string) (*etcd.Store, error) {
	socket, err := filepath.Abs(filepath.Join(dir, "socket"))
	if err != nil {
		return nil, fmt.Errorf("find the folder of the cluster state: %w", err)
	}
	s := Server{unix: "unix:" + socket}
	known, err := readPassword(dir)
	switch {
	case err == nil:
		s.user, s.password = "root", known
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the password of the cluster state: %w", err)
	}
	return s.Client()
}

func passwordFile(dir string) string { return filepath.Join(dir, "password") }

// readPassword reads the password of etcd's user root. A file that a power cut has emptied is refused: it is no empty password.
func readPassword(dir string) (string, error) {
	text, err := os.ReadFile(passwordFile(dir))
	if err == nil && strings.Trim(string(text), " \r\n\x00") == "" {
		err = &refuse.Error{
			Kind: refuse.Failed, What: passwordFile(dir) + " is empty, as after a power failure",
			Remedy: "put it back from the backup; without one, stop berthd, move " + dir + " away and start berthd on each host: each agent claims anew for the nodes that it has",
		}
	}
	return string(text), err
}

// Addr returns the address that other hosts reach, as ADDRESS:PORT; "" if there is none.
func (s *Server) Addr() string {
	if s.others == nil {
		return ""
	}
	return s.others.Addr().String()
}

// Err returns the channel with the error that ends the server before Close.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Close ends the server. Everything that was committed is on the disk.
func (s *Server) Close() {
	s.ending.Store(true)
	s.refuse()
	s.gate.close()
	s.etcd.Close()
}

// refuse takes no more connections of other hosts.
func (s *Server) refuse() {
	if s.others != nil {
		s.others.Close()
	}
}

// silent is how long a connection of another host may say nothing at its beginning, and how long it may then take to agree on TLS; idle is how long
// it may make no call.
const (
	silent = 10 * time.Second
	idle   = 5 * time.Minute
)

// connections returns how many connections of other hosts are open at once: each has three descriptors here, and leaves most of this process's to
// others. etcd itself would take as many as the process may have.
func connections() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 512
	}
	return int(min(l.Cur/8, 4096))
}

// tlsSocket is where etcd answers other hosts, beside its socket for this one: TLS is its own affair.
func tlsSocket(socket string) string { return filepath.Join(filepath.Dir(socket), "hosts") }
