package embedded

import (
	"context"
	"crypto/x509"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"berth/internal/site/store/etcd"
)

// gate lets only hosts pass: etcd itself would take any certificate of the site's authority whose common name is one of its
// users, and looks at it once in a connection. It makes a host a user of etcd when it first comes.
type gate struct {
	allowed func(*x509.Certificate) error

	mu    sync.Mutex
	admin *etcd.Store
	known map[string]bool
}

func newGate(allowed func(*x509.Certificate) error) *gate {
	return &gate{allowed: allowed, known: map[string]bool{}}
}

// open gives the gate the client with which it makes users.
func (g *gate) open(admin *etcd.Store) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admin = admin
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.admin != nil {
		g.admin.Close()
		g.admin = nil
	}
}

// shown returns the certificate of a caller; nil on the unix socket, where callers show none.
func shown(ctx context.Context) (*x509.Certificate, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil, nil
	}
	if len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return nil, status.Error(codes.PermissionDenied, "no certificate")
	}
	return info.State.VerifiedChains[0][0], nil
}

// calls are those of etcd that the agents of other hosts make. All others, such as elections, locks, snapshots and administration,
// are for this host alone.
var calls = map[string]bool{
	"/etcdserverpb.KV/Range":             true,
	"/etcdserverpb.KV/Txn":               true,
	"/etcdserverpb.Watch/Watch":          true,
	"/etcdserverpb.Lease/LeaseGrant":     true,
	"/etcdserverpb.Lease/LeaseKeepAlive": true,
	"/etcdserverpb.Lease/LeaseRevoke":    true,
	"/etcdserverpb.Maintenance/Status":   true,
}

// check refuses clients that are no host of the site now, and calls that hosts do not make. It returns the certificate; nil on
// the unix socket.
func (g *gate) check(ctx context.Context, method string) (*x509.Certificate, error) {
	cert, err := shown(ctx)
	if cert == nil || err != nil {
		return nil, err
	}
	if !calls[method] {
		return nil, status.Errorf(codes.PermissionDenied, "%s is not for other hosts", method)
	}
	if err := g.still(cert); err != nil {
		return nil, err
	}
	name := cert.Subject.CommonName
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known[name] {
		return cert, nil
	}
	if g.admin == nil {
		return nil, status.Error(codes.Unavailable, "the cluster state starts or ends")
	}
	if err := g.admin.Allow(context.WithoutCancel(ctx), name); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	g.known[name] = true
	return cert, nil
}

// still refuses a certificate that is not, or no longer, one of a host.
func (g *gate) still(cert *x509.Certificate) error {
	name := cert.Subject.CommonName
	if name == "" || name == "root" || g.allowed == nil {
		return status.Errorf(codes.PermissionDenied, "certificate of %q is not one of a host", name)
	}
	if err := g.allowed(cert); err != nil {
		return status.Errorf(codes.PermissionDenied, "certificate of %q: %v", name, err)
	}
	return nil
}

func (g *gate) unary(ctx context.Context, req any, call *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if _, err := g.check(ctx, call.FullMethod); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (g *gate) stream(srv any, s grpc.ServerStream, call *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	cert, err := g.check(s.Context(), call.FullMethod)
	if err != nil {
		return err
	}
	if cert != nil {
		s = &checked{s, g, cert}
	}
	return next(srv, s)
}

// checked is a stream whose certificate is looked at with each message.
type checked struct {
	grpc.ServerStream

	gate *gate
	cert *x509.Certificate
}

func (c *checked) RecvMsg(m any) error {
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return c.gate.still(c.cert)
}

func (c *checked) SendMsg(m any) error {
	if err := c.gate.still(c.cert); err != nil {
		return err
	}
	return c.ServerStream.SendMsg(m)
}

// logger passes etcd's warnings on, in a line each.
func logger(log func(format string, a ...any)) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return zap.New(&lines{log: log, LevelEnabler: zapcore.WarnLevel})
}

type lines struct {
	zapcore.LevelEnabler

	log func(format string, a ...any)
}

func (l *lines) With([]zapcore.Field) zapcore.Core { return l }
func (l *lines) Sync() error                       { return nil }

func (l *lines) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if l.Enabled(e.Level) {
		return c.AddCore(e, l)
	}
	return c
}

func (l *lines) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(values)
	}
	l.log("etcd: %s: %s %v", e.Level, e.Message, values.Fields)
	return nil
}
