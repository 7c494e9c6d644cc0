// Package store is the cluster state that the hosts of a site share: a small set of keys with revisions, guards and watches,
// kept by etcd, or in memory for tests.
//
// Callers may assume the following, which package storetest tests for each implementation:
//
//   - Revisions grow by one with each Commit that changes something, for the whole store.
//   - Commit is all or nothing. Its guards hold at the moment of the change, whoever else commits.
//   - Each call answers or fails within [Patience], also while the store is away; the error is then [ErrAway]. A Commit that
//     failed so may have happened all the same: whoever repeats it must read first.
//   - A watch misses nothing and repeats nothing: it goes on after the store was away, or ends with [ErrCompacted].
package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Patience is how long a call waits for a store that does not answer.
const Patience = 3 * time.Second

// The errors that callers branch on. They are wrapped in errors that say what was tried.
var (
	// ErrAbsent is returned by Get if there is no such key.
	ErrAbsent = errors.New("no such key")
	// ErrAway says that the store did not answer. A change may have been made all the same.
	ErrAway = errors.New("the cluster state does not answer")
	// ErrCompacted says that the changes after a revision are not known any more: list again, and watch from there.
	ErrCompacted = errors.New("older changes were compacted")
	// ErrNoSession refuses an op with Lease when there is no session, or it was lost.
	ErrNoSession = errors.New("no session: its lease is gone")
	// ErrRefused says that the store does not let this host do that, or that it is full.
	ErrRefused = errors.New("the cluster state refuses")
	// ErrDenied is an ErrRefused of a store that does not let this host do that.
	ErrDenied = fmt.Errorf("%w this host", ErrRefused)
)

// Entry is a key with its value.
type Entry struct {
	Key      string
	Value    []byte
	Revision int64 // of its last change
}

// Guard is a condition of a Commit.
type Guard struct {
	Key      string
	Revision int64 // of the key's last change; 0: the key must be absent
}

// Op is a change of one key.
type Op struct {
	Key    string
	Value  []byte
	Delete bool // a key that is absent already is no error
	Lease  bool // the key goes with the session
}

// Conflict is the error of a Commit when a guard does not hold. Nothing was changed.
type Conflict struct {
	Key string
	Now *Entry // the present entry; nil if there is none
}

func (c *Conflict) Error() string {
	if c.Now == nil {
		return fmt.Sprintf("key %s is not there any more", c.Key)
	}
	return fmt.Sprintf("key %s has changed: it is %s, of revision %d", c.Key, c.Now.Value, c.Now.Revision)
}

// Change is one change of a key. Of a deleted key only Key and Revision are set.
type Change struct {
	Entry
	Deleted bool
}

// Batch is all that one revision changed below a watch's prefix. A batch with an error is the last one.
type Batch struct {
	Revision int64
	Changes  []Change
	Err      error
}

// Status says how a store is, as far as this host can tell.
type Status struct {
	Reachable bool
	Since     time.Time // since when it is not reachable
	Why       string    // the error of the last failed call
	Size      int64     // bytes on the disk, 0 if unknown
	Revision  int64     // newest one that this host has seen
}

// Store is the state of a site. All methods may be called by several goroutines.
type Store interface {
	// Get returns a key's entry, or ErrAbsent.
	Get(ctx context.Context, key string) (Entry, error)
	// List returns all entries whose keys begin with prefix, sorted by key, as they were at one revision.
	List(ctx context.Context, prefix string) (entries []Entry, revision int64, err error)
	// Commit makes all changes if all guards hold, else none: the error is then a *Conflict. No two ops may have one key.
	Commit(ctx context.Context, guards []Guard, ops []Op) (revision int64, err error)
	// Watch sends the changes below prefix whose revision is above after, oldest first, and those to come; 0 is all that are
	// known. The channel closes after a batch with an error, and when ctx or the store ends.
	Watch(ctx context.Context, prefix string, after int64) (<-chan Batch, error)
	// Session begins a session, if there is none: a lease that is kept until Close, and ends ttl after the host was last heard
	// of. Ops with Lease use it.
	Session(ctx context.Context, ttl time.Duration) error
	// Done returns a channel that closes when the present session is lost. After that, Session begins a new one; entries with
	// the old lease are gone and must be written again. It is closed if there is no session.
	Done() <-chan struct{}
	// Status asks the store how it is. It returns an error only if ctx ends.
	Status(ctx context.Context) (Status, error)
	// Close ends the session, and with it its keys, and all watches.
	Close() error
}
