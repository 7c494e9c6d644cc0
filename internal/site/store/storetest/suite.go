// Package storetest holds the suite that every implementation of the cluster state passes, and a reader of its history that
// finds claims held twice.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/site/store"
	"berth/test/testkit"
)

// Server is an implementation under test.
type Server struct {
	Open    func(t *testing.T) store.Store                       // another client; closed by the suite
	Compact func(t *testing.T, revision int64)                   // forget what was before
	Away    func(t *testing.T) (back func())                     // it stops answering, and keeps its connections
	Kill    func(t *testing.T) (again func())                    // it ends without warning; nil: it cannot
	Expire  func(t *testing.T, s store.Store, ttl time.Duration) // the host of s is not heard of for longer than ttl
}

// Run runs the suite. Each part uses its own keys.
func Run(t *testing.T, s Server) {
	t.Helper()
	for name, part := range map[string]func(*testing.T, Server){
		"guards": guards, "race": race, "watch": watch, "compacted": compacted, "session": session, "lost session": lostSession,
		"away": away, "kill": kill, "many": many, "closed": closedStore,
	} {
		t.Run(name, func(t *testing.T) { part(t, s) })
	}
}

// open returns a client, and a context that ends before the test's patience does.
func open(t *testing.T, s Server) (store.Store, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Bound())
	t.Cleanup(cancel)
	c := s.Open(t)
	t.Cleanup(func() { c.Close() })
	return c, ctx
}

func put(t *testing.T, ctx context.Context, s store.Store, key, value string) int64 { //nolint:revive // t first, as in all helpers
	t.Helper()
	revision, err := s.Commit(ctx, nil, []store.Op{{Key: key, Value: []byte(value)}})
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// guards: a commit whose guards do not hold changes nothing and returns the present entry.
func guards(t *testing.T, s Server) {
	c, ctx := open(t, s)
	if _, err := c.Get(ctx, "/t/guards/a"); !errors.Is(err, store.ErrAbsent) {
		t.Fatalf("an absent key: %v", err)
	}
	free := []store.Guard{{Key: "/t/guards/a"}, {Key: "/t/guards/b"}}
	first, err := c.Commit(ctx, free, []store.Op{{Key: "/t/guards/a", Value: []byte("host one")}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Commit(ctx, free, []store.Op{{Key: "/t/guards/b", Value: []byte("x")}, {Key: "/t/guards/a", Value: []byte("host two")}})
	conflict, ok := errors.AsType[*store.Conflict](err)
	if !ok {
		t.Fatalf("a taken key: %v", err)
	}
	want := &store.Conflict{Key: "/t/guards/a", Now: &store.Entry{Key: "/t/guards/a", Value: []byte("host one"), Revision: first}}
	if diff := cmp.Diff(want, conflict); diff != "" {
		t.Error(diff)
	}
	if _, err := c.Get(ctx, "/t/guards/b"); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("a refused commit changed something: %v", err)
	}
	_, err = c.Commit(ctx, []store.Guard{{Key: "/t/guards/gone", Revision: 7}}, []store.Op{{Key: "/t/guards/b", Value: []byte("x")}})
	if conflict, ok = errors.AsType[*store.Conflict](err); !ok || conflict.Now != nil {
		t.Errorf("a guard on a key that is gone: %v", err)
	}
	second, err := c.Commit(ctx, []store.Guard{{Key: "/t/guards/a", Revision: first}}, []store.Op{{Key: "/t/guards/a", Delete: true}, {Key: "/t/guards/c", Value: []byte("moved")}})
	if err != nil || second <= first {
		t.Fatalf("a commit whose guard holds: revision %d after %d, %v", second, first, err)
	}
	all, _, err := c.List(ctx, "/t/guards/")
	if diff := cmp.Diff([]store.Entry{{Key: "/t/guards/c", Value: []byte("moved"), Revision: second}}, all); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// race: of clients that commit with the same guard at the same time, one wins each time.
func race(t *testing.T, s Server) {
	const clients, turns = 4, 20
	var wait sync.WaitGroup
	for range clients {
		c, ctx := open(t, s)
		wait.Go(func() {
			for done := 0; done < turns; {
				e, err := c.Get(ctx, "/t/race")
				if err != nil && !errors.Is(err, store.ErrAbsent) {
					t.Error(err)
					return
				}
				_, err = c.Commit(ctx, []store.Guard{{Key: "/t/race", Revision: e.Revision}}, []store.Op{{Key: "/t/race", Value: append(e.Value, 'x')}})
				if _, lost := errors.AsType[*store.Conflict](err); lost {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				done++
			}
		})
	}
	wait.Wait()
	c, ctx := open(t, s)
	e, err := c.Get(ctx, "/t/race")
	if err != nil || len(e.Value) != clients*turns {
		t.Errorf("%d of %d changes are there, %v", len(e.Value), clients*turns, err)
	}
}

// next takes the next batch of a watch.
func next(t *testing.T, from <-chan store.Batch) store.Batch {
	t.Helper()
	select {
	case b, ok := <-from:
		if !ok {
			t.Fatal("the watch ended")
		}
		return b
	case <-time.After(testkit.Bound()):
		t.Fatal("the watch says nothing")
	}
	return store.Batch{}
}

// watch: it tells earlier changes and new ones, a revision a batch, in order, and only below its prefix.
func watch(t *testing.T, s Server) {
	c, ctx := open(t, s)
	from := put(t, ctx, c, "/t/watch/a", "1") - 1
	put(t, ctx, c, "/t/elsewhere", "1")
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changes, err := c.Watch(ctx, "/t/watch/", from)
	if err != nil {
		t.Fatal(err)
	}
	if b := next(t, changes); b.Revision != from+1 || len(b.Changes) != 1 || string(b.Changes[0].Value) != "1" {
		t.Errorf("what was before: %+v", b)
	}
	revision, err := c.Commit(ctx, nil, []store.Op{{Key: "/t/watch/a", Delete: true}, {Key: "/t/watch/b", Value: []byte("2")}, {Key: "/t/elsewhere", Value: []byte("2")}})
	if err != nil {
		t.Fatal(err)
	}
	b := next(t, changes)
	slices.SortFunc(b.Changes, func(a, b store.Change) int { return len(a.Value) - len(b.Value) })
	want := store.Batch{Revision: revision, Changes: []store.Change{
		{Entry: store.Entry{Key: "/t/watch/a", Revision: revision}, Deleted: true},
		{Entry: store.Entry{Key: "/t/watch/b", Value: []byte("2"), Revision: revision}},
	}}
	if diff := cmp.Diff(want, b); diff != "" {
		t.Error(diff)
	}
	stop()
	for range changes {
		continue // it closes
	}
}

// compacted: a watch from before a compaction says so, and a follower lists again.
func compacted(t *testing.T, s Server) {
	c, ctx := open(t, s)
	old := put(t, ctx, c, "/t/compacted/a", "1")
	put(t, ctx, c, "/t/compacted/a", "2")
	s.Compact(t, put(t, ctx, c, "/t/compacted/b", "3"))
	changes, err := c.Watch(ctx, "/t/compacted/", old-1)
	if err == nil {
		err = next(t, changes).Err
	}
	if !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watch from before a compaction: %v", err)
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	seen := make(chan string, 10)
	go func() {
		defer close(seen)
		_ = store.Follow(following, c, "/t/compacted/", store.Follower{
			Reset: func(all []store.Entry) { seen <- fmt.Sprint(len(all), " entries") },
			Change: func(b store.Batch) {
				seen <- string(b.Changes[0].Value)
				if string(b.Changes[0].Value) == "5" {
					stop()
				}
			},
		})
	}()
	got := []string{<-seen}
	put(t, ctx, c, "/t/compacted/a", "4")
	put(t, ctx, c, "/t/compacted/a", "5")
	for v := range seen {
		got = append(got, v)
	}
	if diff := cmp.Diff([]string{"2 entries", "4", "5"}, got); diff != "" {
		t.Error(diff)
	}
}

// many: ten thousand entries are listed at one revision, in order.
func many(t *testing.T, s Server) {
	c, ctx := open(t, s)
	const count, at = 10_000, 100
	value := make([]byte, 400) // as much as a node's entry has
	for i := 0; i < count; i += at {
		var ops []store.Op
		for n := range at {
			ops = append(ops, store.Op{Key: fmt.Sprintf("/t/many/%05d", i+n), Value: value})
		}
		if _, err := c.Commit(ctx, nil, ops); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	all, revision, err := c.List(ctx, "/t/many/")
	t.Logf("%d entries listed in %s", len(all), time.Since(begin).Round(time.Millisecond))
	if err != nil || len(all) != count || revision == 0 {
		t.Fatalf("%d entries at revision %d, %v", len(all), revision, err)
	}
	for i, e := range all {
		if e.Key != fmt.Sprintf("/t/many/%05d", i) || len(e.Value) != len(value) {
			t.Fatalf("entry %d is %s with %d bytes", i, e.Key, len(e.Value))
		}
	}
	for i := 0; i < count; i += at {
		var ops []store.Op
		for n := range at {
			ops = append(ops, store.Op{Key: fmt.Sprintf("/t/many/%05d", i+n), Delete: true})
		}
		if _, err := c.Commit(ctx, nil, ops); err != nil {
			t.Fatal(err)
		}
	}
}

// closedStore: what is asked of a closed store fails, and its watches end.
func closedStore(t *testing.T, s Server) {
	c, ctx := open(t, s)
	changes, err := c.Watch(ctx, "/t/closed/", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for range changes {
		continue // it closes
	}
	if err := c.Session(ctx, time.Second); err == nil {
		t.Error("a closed store began a session")
	}
}
