package store

import (
	"context"
	"errors"
	"time"
)

// pause is how long Follow waits before it asks a store again that was away.
const pause = 500 * time.Millisecond

// Follower is told of the entries below a prefix.
type Follower struct {
	Reset  func(all []Entry) // all that is there: at first, and whenever changes are not known any more
	Change func(Batch)       // the changes since
	Away   func(error)       // the store could not be listed; Follow goes on trying. It may be nil
}

// Follow tells f of all that is below prefix until ctx ends: it lists, watches from there, and lists again where older changes
// were compacted.
func Follow(ctx context.Context, s Store, prefix string, f Follower) error {
	for {
		err := follow(ctx, s, prefix, f)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrCompacted) {
			continue
		}
		if f.Away != nil {
			f.Away(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// follow lists and watches once. Its error says why the watch ended.
func follow(ctx context.Context, s Store, prefix string, f Follower) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, revision, err := s.List(ctx, prefix)
	if err != nil {
		return err
	}
	f.Reset(all)
	changes, err := s.Watch(ctx, prefix, revision)
	if err != nil {
		return err
	}
	for b := range changes {
		if b.Err != nil {
			return b.Err
		}
		f.Change(b)
	}
	return ErrAway
}
