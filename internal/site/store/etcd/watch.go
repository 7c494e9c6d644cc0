package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth/internal/site/store"
)

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) (<-chan store.Batch, error) {
	out := make(chan store.Batch)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.life, cancel)
	go func() {
		defer close(out)
		defer stop()
		defer cancel()
		for {
			err := s.watch(ctx, prefix, &after, out)
			if ctx.Err() != nil {
				return
			}
			if errors.Is(err, store.ErrCompacted) || errors.Is(err, store.ErrRefused) {
				send(ctx, out, store.Batch{Err: fmt.Errorf("watch %s: %w", prefix, err)})
				return
			}
			select { // away: go on from where it was
			case <-ctx.Done():
				return
			case <-time.After(reconnect):
			}
		}
	}()
	return out, nil
}

// watch sends the changes after a revision, which it moves on, until etcd ends the watch. The client itself goes on after a
// lost connection; a member without a leader ends the watch, so that another one is asked.
func (s *Store) watch(ctx context.Context, prefix string, after *int64, out chan<- store.Batch) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for r := range s.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(*after+1)) {
		if err := r.Err(); err != nil {
			return told(err)
		}
		s.saw(r.Header.Revision)
		for _, b := range batches(r.Events) {
			if !send(ctx, out, b) {
				return ctx.Err()
			}
			*after = b.Revision
		}
	}
	return store.ErrAway
}

func send(ctx context.Context, out chan<- store.Batch, b store.Batch) bool {
	select {
	case out <- b:
		return true
	case <-ctx.Done():
		return false
	}
}

// batches groups events by their revision. etcd sends those of one revision together.
func batches(events []*clientv3.Event) []store.Batch {
	var all []store.Batch
	for _, e := range events {
		c := store.Change{Entry: store.Entry{Key: string(e.Kv.Key), Value: e.Kv.Value, Revision: e.Kv.ModRevision}, Deleted: e.Type == clientv3.EventTypeDelete}
		if len(all) == 0 || all[len(all)-1].Revision != c.Revision {
			all = append(all, store.Batch{Revision: c.Revision})
		}
		last := &all[len(all)-1]
		last.Changes = append(last.Changes, c)
	}
	return all
}
