package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Memory is a Store in this process, for tests and for hosts without a cluster. Several clients share one: see [Memory.Client].
type Memory struct {
	*shared

	session *session // of this client; the lock of shared
	closed  chan struct{}
	once    sync.Once
}

// shared is the state that all clients of a Memory share.
type shared struct {
	sync.Mutex

	keys      map[string]held
	revision  int64
	history   []Batch // all since compacted
	compacted int64
	changed   chan struct{} // closed and replaced by each change
	away      chan struct{} // closed when the store is back; nil while it is there
	since     time.Time
}

type held struct {
	Entry
	lease *session
}

type session struct{ done chan struct{} }

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{shared: &shared{keys: map[string]held{}, changed: make(chan struct{})}, closed: make(chan struct{})}
}

// Client returns another client of the same store, with a session of its own.
func (m *Memory) Client() *Memory { return &Memory{shared: m.shared, closed: make(chan struct{})} }

// Away makes the store unreachable for all clients until back is called.
func (m *Memory) Away() (back func()) {
	m.Lock()
	defer m.Unlock()
	away := make(chan struct{})
	m.away, m.since = away, time.Now()
	return sync.OnceFunc(func() {
		m.Lock()
		defer m.Unlock()
		m.away = nil
		close(away)
	})
}

// Compact forgets the changes up to a revision.
func (m *Memory) Compact(_ context.Context, revision int64) error {
	m.Lock()
	defer m.Unlock()
	m.compacted = max(m.compacted, revision)
	m.history = slices.DeleteFunc(m.history, func(b Batch) bool { return b.Revision <= m.compacted })
	return nil
}

// Expire ends this client's session, as if its host had not been heard of.
func (m *Memory) Expire() {
	m.Lock()
	defer m.Unlock()
	m.endSession()
}

// enter takes the lock once the store is there, for at most Patience.
func (m *Memory) enter(ctx context.Context) error {
	limit := time.NewTimer(Patience)
	defer limit.Stop()
	for {
		m.Lock()
		away := m.away
		if away == nil {
			return nil
		}
		m.Unlock()
		select {
		case <-away:
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return ErrAway
		case <-m.closed:
			return ErrAway
		}
	}
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, key string) (Entry, error) {
	if err := m.enter(ctx); err != nil {
		return Entry{}, fmt.Errorf("read %s: %w", key, err)
	}
	defer m.Unlock()
	h, ok := m.keys[key]
	if !ok {
		return Entry{}, fmt.Errorf("read %s: %w", key, ErrAbsent)
	}
	return h.copied(), nil
}

// List implements Store.
func (m *Memory) List(ctx context.Context, prefix string) ([]Entry, int64, error) {
	if err := m.enter(ctx); err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", prefix, err)
	}
	defer m.Unlock()
	var all []Entry
	for key, h := range m.keys {
		if strings.HasPrefix(key, prefix) {
			all = append(all, h.copied())
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Key, b.Key) })
	return all, m.revision, nil
}

// Commit implements Store.
func (m *Memory) Commit(ctx context.Context, guards []Guard, ops []Op) (int64, error) {
	if err := m.enter(ctx); err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	defer m.Unlock()
	seen := map[string]bool{}
	for _, op := range ops {
		if seen[op.Key] {
			return 0, fmt.Errorf("commit: two changes of key %s", op.Key)
		}
		seen[op.Key] = true
		if op.Lease && m.session == nil {
			return 0, fmt.Errorf("commit %s: %w", op.Key, ErrNoSession)
		}
	}
	for _, g := range guards {
		h, ok := m.keys[g.Key]
		if h.Revision == g.Revision {
			continue
		}
		c := &Conflict{Key: g.Key}
		if ok {
			now := h.copied()
			c.Now = &now
		}
		return 0, c
	}
	m.change(ops, m.session)
	return m.revision, nil
}

// change makes changes, of which those with a lease belong to a session.
func (s *shared) change(ops []Op, of *session) {
	b := Batch{Revision: s.revision + 1}
	for _, op := range ops {
		if op.Delete {
			if _, ok := s.keys[op.Key]; ok {
				delete(s.keys, op.Key)
				b.Changes = append(b.Changes, Change{Entry: Entry{Key: op.Key, Revision: b.Revision}, Deleted: true})
			}
			continue
		}
		h := held{Entry: Entry{Key: op.Key, Value: bytes.Clone(op.Value), Revision: b.Revision}}
		if op.Lease {
			h.lease = of
		}
		s.keys[op.Key] = h
		b.Changes = append(b.Changes, Change{Entry: h.Entry})
	}
	if len(b.Changes) == 0 {
		return
	}
	s.revision = b.Revision
	s.history = append(s.history, b)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, prefix string, after int64) (<-chan Batch, error) {
	out := make(chan Batch)
	go func() {
		defer close(out)
		for {
			news, head, next, err := m.news(prefix, after)
			if err != nil {
				news = []Batch{{Err: err}}
			}
			for _, b := range news {
				select {
				case out <- b:
				case <-ctx.Done():
					return
				case <-m.closed:
					return
				}
			}
			if err != nil {
				return
			}
			after = max(after, head)
			select {
			case <-next:
			case <-ctx.Done():
				return
			case <-m.closed:
				return
			}
		}
	}()
	return out, nil
}

// news returns what changed after a revision, up to which revision that is, and a channel that closes when there is more to ask
// for.
func (m *Memory) news(prefix string, after int64) (all []Batch, head int64, more <-chan struct{}, err error) {
	m.Lock()
	defer m.Unlock()
	if m.away != nil {
		return nil, after, m.away, nil
	}
	if after < m.compacted {
		return nil, after, nil, fmt.Errorf("watch %s: %w", prefix, ErrCompacted)
	}
	first, _ := slices.BinarySearchFunc(m.history, after+1, func(b Batch, r int64) int { return cmp.Compare(b.Revision, r) })
	for _, b := range m.history[first:] {
		own := Batch{Revision: b.Revision}
		for _, c := range b.Changes {
			if strings.HasPrefix(c.Key, prefix) {
				c.Value = bytes.Clone(c.Value)
				own.Changes = append(own.Changes, c)
			}
		}
		if len(own.Changes) > 0 {
			all = append(all, own)
		}
	}
	return all, m.revision, m.changed, nil
}

// Session implements Store. The session of a Memory ends with Close and Expire only.
func (m *Memory) Session(ctx context.Context, _ time.Duration) error {
	if err := m.enter(ctx); err != nil {
		return fmt.Errorf("begin a session: %w", err)
	}
	defer m.Unlock()
	select {
	case <-m.closed:
		return errors.New("begin a session: the store is closed")
	default:
	}
	if m.session == nil {
		m.session = &session{done: make(chan struct{})}
	}
	return nil
}

// Done implements Store.
func (m *Memory) Done() <-chan struct{} {
	m.Lock()
	defer m.Unlock()
	if m.session == nil {
		return closed
	}
	return m.session.done
}

// closed is the Done of a store without a session.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// endSession removes the session's keys.
func (m *Memory) endSession() {
	if m.session == nil {
		return
	}
	var ops []Op
	for key, h := range m.keys {
		if h.lease == m.session {
			ops = append(ops, Op{Key: key, Delete: true})
		}
	}
	slices.SortFunc(ops, func(a, b Op) int { return cmp.Compare(a.Key, b.Key) })
	m.change(ops, nil)
	close(m.session.done)
	m.session = nil
}

// Status implements Store.
func (m *Memory) Status(ctx context.Context) (Status, error) {
	m.Lock()
	defer m.Unlock()
	s := Status{Reachable: m.away == nil, Revision: m.revision}
	if !s.Reachable {
		s.Since, s.Why = m.since, ErrAway.Error()
	}
	for key, h := range m.keys {
		s.Size += int64(len(key) + len(h.Value))
	}
	return s, ctx.Err()
}

// Close implements Store.
func (m *Memory) Close() error {
	m.once.Do(func() {
		m.Lock()
		defer m.Unlock()
		m.endSession()
		close(m.closed)
	})
	return nil
}

func (h held) copied() Entry {
	e := h.Entry
	e.Value = bytes.Clone(e.Value)
	return e
}
