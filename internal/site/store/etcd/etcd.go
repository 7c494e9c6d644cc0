// Package etcd keeps the cluster state in an etcd, 3.4 or newer: the site's own, or the one that an agent runs itself.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"berth/internal/site/store"
)

// Config has the endpoints of an etcd, and the client's certificate.
type Config struct {
	Endpoints []string    // https://HOST:PORT, or unix:PATH
	TLS       *tls.Config // of https endpoints
	User      string      // with Password; without both, etcd takes the common name of the certificate
	Password  string
}

// Store is a store.Store on etcd.
type Store struct {
	client *clientv3.Client
	life   context.Context // until Close
	end    context.CancelFunc

	mu      sync.Mutex
	session *session
	away    time.Time // since when; zero: it answered last
	why     string
	newest  int64
	noTLS   error     // why the last handshake of TLS failed; nil: it did not
	noTLSAt time.Time // when
}

type session struct {
	lease clientv3.LeaseID
	done  chan struct{}
}

// Times of the connection. A host that comes back after a partition is connected again within reconnect and the time that a
// dead connection is noticed, dead. etcd refuses clients that ask for life more often than every five seconds.
const (
	reconnect = 500 * time.Millisecond
	alive     = 5 * time.Second
	dead      = 2 * time.Second
)

// Open returns the store. It does not wait for etcd to answer: an agent starts without it.
func Open(c Config) (*Store, error) {
	life, end := context.WithCancel(context.Background())
	steps := backoff.DefaultConfig
	steps.BaseDelay, steps.MaxDelay = reconnect/5, reconnect
	s := &Store{life: life, end: end}
	dial := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: steps, MinConnectTimeout: store.Patience}),
		grpc.WithNoProxy(), // a proxy of the environment is for images: package server, proxies
	}
	if c.TLS != nil {
		dial = append(dial, grpc.WithTransportCredentials(noting{credentials.NewTLS(c.TLS), s.noteHandshake}))
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: c.TLS, Username: c.User, Password: c.Password, Context: life, Logger: zap.NewNop(),
		DialKeepAliveTime: alive, DialKeepAliveTimeout: dead,
		DialOptions: dial,
	})
	if err != nil {
		end()
		return nil, fmt.Errorf("open the cluster state at %v: %w", c.Endpoints, err)
	}
	s.client = client
	return s, nil
}

// noting are credentials that note how each handshake of TLS ends: the client of etcd tries again and again, and says in the end that nobody answered
// in time.
type noting struct {
	credentials.TransportCredentials
	note func(error)
}

// ClientHandshake implements credentials.TransportCredentials.
func (n noting) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := n.TransportCredentials.ClientHandshake(ctx, authority, raw)
	n.note(err)
	return c, info, err
}

// Clone implements credentials.TransportCredentials.
func (n noting) Clone() credentials.TransportCredentials {
	return noting{n.TransportCredentials.Clone(), n.note}
}

func (s *Store) noteHandshake(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noTLS, s.noTLSAt = err, time.Now()
}

// explained returns the error of a call to which nobody answered, with that of a handshake of TLS that failed within the last store.Patience: an older
// one says nothing of this call.
func (s *Store) explained(err error, now time.Time) error {
	if s.noTLS == nil || now.Sub(s.noTLSAt) > store.Patience {
		return err
	}
	return fmt.Errorf("%w: %w", err, s.noTLS)
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.Entry, error) {
	r, err := ask(ctx, s, func(ctx context.Context) (*clientv3.GetResponse, error) { return s.client.Get(ctx, key) })
	if err != nil {
		return store.Entry{}, fmt.Errorf("read %s: %w", key, err)
	}
	s.saw(r.Header.Revision)
	if len(r.Kvs) == 0 {
		return store.Entry{}, fmt.Errorf("read %s: %w", key, store.ErrAbsent)
	}
	return store.Entry{Key: key, Value: r.Kvs[0].Value, Revision: r.Kvs[0].ModRevision}, nil
}

// page is how many entries one answer of List holds: some megabytes at most, so that a large site does not hold up others.
const page = 2000

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix string) (all []store.Entry, revision int64, err error) {
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision)}
		r, err := ask(ctx, s, func(ctx context.Context) (*clientv3.GetResponse, error) { return s.client.Get(ctx, from, opts...) })
		if err != nil {
			return nil, 0, fmt.Errorf("list %s: %w", prefix, err)
		}
		if revision == 0 {
			revision = r.Header.Revision
		}
		s.saw(revision)
		for _, kv := range r.Kvs {
			all = append(all, store.Entry{Key: string(kv.Key), Value: kv.Value, Revision: kv.ModRevision})
		}
		if !r.More {
			return all, revision, nil
		}
		from = all[len(all)-1].Key + "\x00"
	}
}

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, guards []store.Guard, ops []store.Op) (int64, error) {
	var lease clientv3.LeaseID
	var ifs []clientv3.Cmp
	var then, otherwise []clientv3.Op
	for _, op := range ops {
		switch {
		case op.Delete:
			then = append(then, clientv3.OpDelete(op.Key))
		case op.Lease:
			if lease = s.lease(); lease == clientv3.NoLease {
				return 0, fmt.Errorf("commit %s: %w", op.Key, store.ErrNoSession)
			}
			then = append(then, clientv3.OpPut(op.Key, string(op.Value), clientv3.WithLease(lease)))
		default:
			then = append(then, clientv3.OpPut(op.Key, string(op.Value)))
		}
	}
	for _, g := range guards {
		ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(g.Key), "=", g.Revision))
		otherwise = append(otherwise, clientv3.OpGet(g.Key))
	}
	r, err := ask(ctx, s, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).If(ifs...).Then(then...).Else(otherwise...).Commit()
	})
	if errors.Is(err, store.ErrNoSession) {
		s.lost(lease)
	}
	if err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	s.saw(r.Header.Revision)
	if r.Succeeded {
		return r.Header.Revision, nil
	}
	return 0, conflict(guards, r)
}

// conflict finds the first guard that does not hold.
func conflict(guards []store.Guard, r *clientv3.TxnResponse) error {
	for i, g := range guards {
		found := r.Responses[i].GetResponseRange().Kvs
		if len(found) == 0 && g.Revision != 0 {
			return &store.Conflict{Key: g.Key}
		}
		if len(found) > 0 && found[0].ModRevision != g.Revision {
			return &store.Conflict{Key: g.Key, Now: &store.Entry{Key: g.Key, Value: found[0].Value, Revision: found[0].ModRevision}}
		}
	}
	return fmt.Errorf("commit: %w: etcd says that a guard does not hold, and all do", store.ErrRefused)
}

// Status implements store.Store.
func (s *Store) Status(ctx context.Context) (store.Status, error) {
	var size int64
	for _, endpoint := range s.client.Endpoints() { // the first that answers
		r, err := ask(ctx, s, func(ctx context.Context) (*clientv3.StatusResponse, error) { return s.client.Status(ctx, endpoint) })
		if err == nil {
			s.saw(r.Header.Revision)
			size = r.DbSize
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.Status{Reachable: s.away.IsZero(), Since: s.away, Why: s.why, Size: size, Revision: s.newest}, ctx.Err()
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.endSession()
	s.end()
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the cluster state: %w", err)
	}
	return nil
}

// ask makes one call, which ends within store.Patience, and remembers whether etcd answered.
func ask[R any](ctx context.Context, s *Store, call func(context.Context) (R, error)) (R, error) {
	limited, cancel := context.WithTimeout(ctx, store.Patience)
	defer cancel()
	r, err := call(limited)
	if err != nil && ctx.Err() != nil {
		return r, ctx.Err() // the caller's wish says nothing of etcd
	}
	err = told(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(err, store.ErrAway) {
		s.away, s.why = time.Time{}, ""
		return r, err
	}
	if s.away.IsZero() {
		s.away = time.Now()
	}
	err = s.explained(err, time.Now())
	s.why = err.Error()
	return r, err
}

func (s *Store) saw(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = max(s.newest, revision)
}

// told turns the client's errors into those of package store.
func told(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w within %s", store.ErrAway, store.Patience)
	}
	err = rpctypes.Error(err)
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return store.ErrCompacted
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return store.ErrNoSession
	}
	code := status.Code(err)
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = e.Code()
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return fmt.Errorf("%w: %w", store.ErrAway, err)
	case codes.PermissionDenied, codes.Unauthenticated:
		return fmt.Errorf("%w: %w", store.ErrDenied, err)
	}
	return fmt.Errorf("%w: %w", store.ErrRefused, err)
}
