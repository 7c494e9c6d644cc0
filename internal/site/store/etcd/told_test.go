package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/credentials"

	"berth/internal/site/store"
	"berth/test/testkit"
)

// TestTold: what a store refuses is told apart from what it refuses this host.
func TestTold(t *testing.T) {
	for _, tc := range []struct {
		err, want error
		denied    bool
	}{
		{rpctypes.ErrGRPCPermissionDenied, store.ErrRefused, true},
		{rpctypes.ErrGRPCInvalidAuthToken, store.ErrRefused, true},
		{rpctypes.ErrGRPCNoSpace, store.ErrRefused, false},
		{rpctypes.ErrGRPCNoLeader, store.ErrAway, false},
		{context.DeadlineExceeded, store.ErrAway, false},
	} {
		if err := told(tc.err); !errors.Is(err, tc.want) || errors.Is(err, store.ErrDenied) != tc.denied {
			t.Errorf("%v: %v", tc.err, err)
		}
	}
}

// TestExplained: why a handshake failed is told of the calls that it concerns, and not of later ones.
func TestExplained(t *testing.T) {
	s, why := &Store{}, errors.New("another authority")
	s.noteHandshake(why)
	if err := s.explained(store.ErrAway, s.noTLSAt.Add(store.Patience)); !errors.Is(err, why) || !errors.Is(err, store.ErrAway) {
		t.Errorf("just after it: %v", err)
	}
	if err := s.explained(store.ErrAway, s.noTLSAt.Add(store.Patience+time.Millisecond)); errors.Is(err, why) {
		t.Errorf("later: %v", err)
	}
	s.noteHandshake(nil)
	if err := s.explained(store.ErrAway, s.noTLSAt); errors.Is(err, why) {
		t.Errorf("after one that did not fail: %v", err)
	}
}

// TestClone: a copy of the credentials notes how a handshake ends, as they do.
func TestClone(t *testing.T) {
	var noted error
	n := noting{credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}), func(err error) { noted = err }}
	near, far := net.Pipe()
	testkit.Must(t, far.Close())
	if _, _, err := n.Clone().ClientHandshake(t.Context(), "etcd", near); err == nil || !errors.Is(noted, err) {
		t.Errorf("%v, noted %v", err, noted)
	}
}
