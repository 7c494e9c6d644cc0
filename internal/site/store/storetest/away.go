package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"berth/internal/site/store"
	"berth/test/testkit"
)

// ttl is that of a session which a test loses: no less than the shortest that every etcd allows, and more than the pauses of
// a busy machine.
var ttl = testkit.Bound() / 15

// session: keys with a lease are there while their host is, and come back with it.
func session(t *testing.T, s Server) {
	other, ctx := open(t, s)
	c, _ := open(t, s)
	op := []store.Op{{Key: "/t/session/host", Value: []byte("here"), Lease: true}}
	if _, err := c.Commit(ctx, nil, op); !errors.Is(err, store.ErrNoSession) {
		t.Errorf("a lease without a session: %v", err)
	}
	select {
	case <-c.Done():
	default:
		t.Error("there is no session, and it is not done")
	}
	for range 2 { // the second time nothing is to be done
		if err := c.Session(ctx, ttl); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Commit(ctx, nil, op); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
		t.Error("the session ended by itself")
	case <-time.After(ttl + ttl/2): // it is kept
	}
	e, err := other.Get(ctx, "/t/session/host")
	if err != nil {
		t.Fatal(err)
	}
	changes, err := other.Watch(ctx, "/t/session/", e.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if b := next(t, changes); !b.Changes[0].Deleted {
		t.Errorf("after its host: %+v", b)
	}
	again, _ := open(t, s)
	if err := again.Session(ctx, ttl); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Commit(ctx, nil, op); err != nil {
		t.Fatal(err)
	}
	if b := next(t, changes); string(b.Changes[0].Value) != "here" {
		t.Errorf("after it came back: %+v", b)
	}
}

// lostSession: a host that was not heard of for too long learns it, loses the entries with its lease and no others, and begins
// anew.
func lostSession(t *testing.T, s Server) {
	c, ctx := open(t, s)
	if err := c.Session(ctx, ttl); err != nil {
		t.Fatal(err)
	}
	ops := []store.Op{{Key: "/t/lost/host", Value: []byte("1"), Lease: true}, {Key: "/t/lost/claim", Value: []byte("1")}}
	if _, err := c.Commit(ctx, nil, ops); err != nil {
		t.Fatal(err)
	}
	done := c.Done()
	s.Expire(t, c, ttl)
	select {
	case <-done:
	case <-time.After(testkit.Bound()):
		t.Fatal("the host does not learn that its session is lost")
	}
	testkit.Eventually(t, "the entry of a lost host goes", func() bool {
		_, err := c.Get(ctx, "/t/lost/host")
		return errors.Is(err, store.ErrAbsent)
	})
	if _, err := c.Get(ctx, "/t/lost/claim"); err != nil {
		t.Errorf("a claim went with the session: %v", err)
	}
	if err := c.Session(ctx, ttl); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Commit(ctx, nil, ops); err != nil {
		t.Fatal(err)
	}
}

// away: without the store each call fails in time and says why, nothing hangs, and a watch goes on.
func away(t *testing.T, s Server) {
	c, ctx := open(t, s)
	revision := put(t, ctx, c, "/t/away", "before")
	changes, err := c.Watch(ctx, "/t/away", revision)
	if err != nil {
		t.Fatal(err)
	}
	put(t, ctx, c, "/t/away", "watched")
	next(t, changes)
	back := s.Away(t)
	defer back()
	begin := time.Now()
	var wait sync.WaitGroup
	for name, call := range map[string]func() error{
		"get":  func() error { _, err := c.Get(ctx, "/t/away"); return err },
		"list": func() error { _, _, err := c.List(ctx, "/t/"); return err },
		"commit": func() error {
			_, err := c.Commit(ctx, nil, []store.Op{{Key: "/t/away/lost", Delete: true}})
			return err
		},
		"session": func() error { return c.Session(ctx, ttl) },
	} {
		wait.Go(func() {
			if err := call(); !errors.Is(err, store.ErrAway) {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(begin); testkit.Measures() && took > store.Patience+5*time.Second {
				t.Errorf("%s took %s", name, took)
			}
		})
	}
	wait.Wait()
	st, err := c.Status(ctx)
	if err != nil || st.Reachable || st.Why == "" || st.Since.Before(begin.Add(-time.Second)) || st.Since.After(time.Now()) {
		t.Errorf("status while it is away: %+v, %v", st, err)
	}
	back()
	caughtUp(t, ctx, c, changes)
	if st, err := c.Status(ctx); err != nil || !st.Reachable || !st.Since.IsZero() || st.Revision == 0 {
		t.Errorf("status when it is back: %+v, %v", st, err)
	}
}

// kill: committed changes are there after a kill, and a watch misses nothing of it.
func kill(t *testing.T, s Server) {
	if s.Kill == nil {
		return
	}
	c, ctx := open(t, s)
	other, _ := open(t, s)
	revision := put(t, ctx, c, "/t/kill", "-1")
	changes, err := other.Watch(ctx, "/t/kill", revision)
	if err != nil {
		t.Fatal(err)
	}
	var again func()
	failed, committed := 0, 0
	for i := range 60 {
		switch i {
		case 20:
			again = s.Kill(t)
		case 22:
			again()
		}
		_, err := c.Commit(ctx, nil, []store.Op{{Key: "/t/kill", Value: fmt.Append(nil, i)}})
		for (i < 20 || i >= 22) && errors.Is(err, store.ErrAway) && ctx.Err() == nil { // it starts, or the machine is busy
			_, err = c.Commit(ctx, nil, []store.Op{{Key: "/t/kill", Value: fmt.Append(nil, i)}})
		}
		switch {
		case err == nil:
			committed++
		case errors.Is(err, store.ErrAway):
			failed++
		default:
			t.Fatal(err)
		}
	}
	if committed < 58 || failed > 2 {
		t.Errorf("%d commits, %d failed", committed, failed)
	}
	seen := map[string]bool{}
	for last := int64(0); !seen["59"]; {
		b := next(t, changes)
		if b.Err != nil || b.Revision <= last {
			t.Fatalf("revision %d after %d, %v", b.Revision, last, b.Err)
		}
		last = b.Revision
		seen[string(b.Changes[0].Value)] = true
	}
	for i := range 60 {
		if (i < 20 || i >= 22) && !seen[fmt.Sprint(i)] {
			t.Errorf("the watch missed commit %d", i)
		}
	}
}

// caughtUp checks that a store that is back takes commits, and that a watch tells them: within 5 seconds where a run measures.
func caughtUp(t *testing.T, ctx context.Context, c store.Store, changes <-chan store.Batch) { //nolint:revive // t first
	t.Helper()
	begin := time.Now()
	for {
		_, err := c.Commit(ctx, nil, []store.Op{{Key: "/t/away", Value: []byte("back")}})
		if err == nil {
			break
		}
		if !errors.Is(err, store.ErrAway) || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	for {
		b := next(t, changes)
		if b.Err != nil {
			t.Fatal(b.Err)
		}
		if string(b.Changes[0].Value) == "back" {
			break
		}
	}
	took := time.Since(begin)
	t.Logf("caught up %s after the store was back", took.Round(time.Millisecond))
	if testkit.Measures() && took > 5*time.Second {
		t.Errorf("caught up after %s", took)
	}
}
