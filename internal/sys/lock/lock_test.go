package lock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/test/testkit"
)

func TestOneHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if got, err := Try(second); got || err != nil {
		t.Fatalf("two holders: %v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Wait(ctx, second); !errors.Is(err, context.Canceled) {
		t.Fatalf("wait with an ended context: %v", err)
	}
	third := make(chan error, 1)
	go func() {
		f, err := Open(t.Context(), path)
		if err == nil {
			f.Close()
		}
		third <- err
	}()
	second.Close() // with it the wait that was given up counts for nothing
	Release(first)
	if err := <-third; err != nil {
		t.Fatal(err)
	}
}

// TestWaitForLeavesNothing: who gave up does not keep the file open, so its file system can be unmounted.
func TestWaitForLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := WaitFor(second, 20*time.Millisecond); got || err != nil {
		t.Fatalf("two holders: %v, %v", got, err)
	}
	second.Close()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == path {
			open++
		}
	}
	if open != 1 {
		t.Errorf("%d files are open, not the holder's alone", open)
	}
	time.AfterFunc(20*time.Millisecond, func() { first.Close() })
	third, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if got, err := WaitFor(third, time.Minute); !got || err != nil {
		t.Errorf("a lock that was released: %v, %v", got, err)
	}
}

func TestReleaseBesideACopy(t *testing.T) {
	dir := t.TempDir()
	f, err := OpenDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	child, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{Files: []*os.File{nil, nil, nil, f}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Kill(); _, _ = child.Wait() }()
	Release(f)
	again, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got, err := Try(again); !got || err != nil {
		t.Errorf("the copy in a child keeps the lock: %v, %v", got, err)
	}
}

func TestVisible(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := open(), open()
	if held, err := Held(b); held || err != nil {
		t.Fatalf("held by nobody: %v, %v", held, err)
	}
	if got, err := TryVisible(a); !got || err != nil {
		t.Fatalf("take: %v, %v", got, err)
	}
	if held, err := Held(b); !held || err != nil {
		t.Fatalf("held by a: %v, %v", held, err)
	}
	if got, err := TryVisible(b); got || err != nil {
		t.Fatalf("two holders: %v, %v", got, err)
	}
	a.Close()
	if held, err := Held(b); held || err != nil {
		t.Fatalf("held after its end: %v, %v", held, err)
	}
}

// TestGivenUp: of those who gave up to wait, few threads and open files are left, and who still waits gets the lock.
func TestGivenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := Open(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got the lock of another: %v", err)
		}
		cancel()
	}
	open := 0
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == path {
			open++
		}
	}
	if open > 2 {
		t.Errorf("the file is open %d times: want its holder and one who waits", open)
	}
	const waiters = 5
	got := make(chan error, waiters)
	for range waiters {
		go func() {
			f, err := Open(t.Context(), path)
			if err == nil {
				Release(f)
			}
			got <- err
		}()
	}
	Release(held)
	for range waiters {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, "no queue is left", func() bool {
		waiting.mu.Lock()
		defer waiting.mu.Unlock()
		return len(waiting.of) == 0
	})
}
