package etcd

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth/internal/site/store"
)

// Session implements store.Store.
func (s *Store) Session(ctx context.Context, ttl time.Duration) error {
	if s.lease() != clientv3.NoLease {
		return nil
	}
	if err := s.life.Err(); err != nil {
		return fmt.Errorf("begin a session: the store is closed: %w", err)
	}
	granted, err := ask(ctx, s, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return s.client.Grant(ctx, max(1, int64(ttl/time.Second)))
	})
	if err != nil {
		return fmt.Errorf("begin a session: %w", err)
	}
	kept, err := s.client.KeepAlive(s.life, granted.ID) // ends when the lease has, or with s.life
	if err != nil {
		return fmt.Errorf("keep the session: %w", told(err))
	}
	s.mu.Lock()
	s.session = &session{lease: granted.ID, done: make(chan struct{})}
	s.mu.Unlock()
	go func() {
		for range kept {
			continue // each answer is a second look at the same thing
		}
		s.lost(granted.ID)
	}()
	return nil
}

// Done implements store.Store.
func (s *Store) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		none := make(chan struct{})
		close(none)
		return none
	}
	return s.session.done
}

// lease returns the session's lease; NoLease if there is none.
func (s *Store) lease() clientv3.LeaseID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		return clientv3.NoLease
	}
	return s.session.lease
}

// lost ends the session with this lease.
func (s *Store) lost(lease clientv3.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil && s.session.lease == lease {
		close(s.session.done)
		s.session = nil
	}
}

// endSession takes the session's keys away at once, if etcd answers; else they go with its time.
func (s *Store) endSession() {
	lease := s.lease()
	if lease == clientv3.NoLease {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), store.Patience/3)
	defer cancel()
	_, _ = s.client.Revoke(ctx, lease)
	s.lost(lease)
}
