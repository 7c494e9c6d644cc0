package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/test/testkit"
)

// TestMain is also a writer: with EVENTS_DIR it appends as many events as EVENTS_N says.
func TestMain(m *testing.M) {
	dir := os.Getenv("EVENTS_DIR")
	if dir == "" {
		os.Exit(m.Run())
	}
	n, _ := strconv.Atoi(os.Getenv("EVENTS_N"))
	for i := range n {
		if err := (File{dir}).Append([]Event{numbered(os.Getenv("EVENTS_NODE"), i)}, false); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(0)
}

func numbered(node string, i int) Event {
	return Event{Time: time.Unix(int64(i), 0).UTC(), Node: node, Event: Started}
}

func all(t *testing.T, f File) []Event {
	t.Helper()
	got, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// writer starts a process that appends events.
func writer(t *testing.T, f File, node string, n int) *exec.Cmd {
	t.Helper()
	cmd := testkit.Again(t, "", "EVENTS_DIR="+f.Dir, "EVENTS_NODE="+node, "EVENTS_N="+strconv.Itoa(n))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// TestWriters: several processes write at once, one of them is killed, the parts change meanwhile, and a follower gets
// each event once, those of one writer in order.
func TestWriters(t *testing.T) {
	f := File{filepath.Join(t.TempDir(), "events")}
	const n = 12000 // times three is more than one part, and less than two
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := map[string]int{}
	started, done := make(chan bool), make(chan error, 1)
	go func() {
		done <- f.Follow(ctx, true, func(e Event) error {
			if e.Node == "go" {
				close(started)
				return nil
			}
			if want := numbered(e.Node, seen[e.Node]); !cmp.Equal(e, want) {
				return fmt.Errorf("%+v, want %+v", e, want)
			}
			if seen[e.Node]++; seen["a"] == n && seen["b"] == n {
				cancel()
			}
			return nil
		})
	}()
	if err := f.Append([]Event{numbered("go", 0)}, false); err != nil {
		t.Fatal(err)
	}
	<-started
	a, b, killed := writer(t, f, "a", n), writer(t, f, "b", n), writer(t, f, "killed", n)
	testkit.Eventually(t, "something is written", func() bool { return len(all(t, f)) >= 100 })
	_ = killed.Process.Kill()
	_ = killed.Wait()
	if err := errors.Join(a.Wait(), b.Wait()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(testkit.Bound()):
		t.Fatalf("the follower got %v", seen)
	}
	t.Logf("the follower got %v", seen)
	if _, err := os.Stat(filepath.Join(f.Dir, "events.1")); err != nil {
		t.Errorf("the parts did not change: %v", err)
	}
}

// TestBounded: the file never takes more than two parts and a line.
func TestBounded(t *testing.T) {
	f := File{t.TempDir()}
	var some []Event
	for i := range 1000 {
		some = append(some, numbered(strings.Repeat("n", 48), i))
	}
	for range 40 {
		if err := f.Append(some, false); err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, name := range []string{"events", "events.1"} {
			if st, err := os.Stat(filepath.Join(f.Dir, name)); err == nil {
				sum += st.Size()
			}
		}
		if sum > 2*Half+300_000 {
			t.Fatalf("%d bytes", sum)
		}
	}
}

// TestTornAndAgain: a line that a power cut tore harms no other, and what a killed process may have written is not repeated.
func TestTornAndAgain(t *testing.T) {
	f := File{t.TempDir()}
	first, second, third := numbered("n", 1), numbered("n", 2), numbered("n", 3)
	if err := f.Append([]Event{first}, false); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(f.Dir, "events")
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, append(text, text[:20]...), 0o600)
	}
	if err == nil {
		err = f.Append([]Event{second}, false)
	}
	if err == nil {
		err = f.Append([]Event{first, second, third}, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Event{first, second, third}, all(t, f)); d != "" {
		t.Error(d)
	}
}

// TestTell: bounds of time and names; without a stream it ends at once, with one at the end of its time.
func TestTell(t *testing.T) {
	f := File{filepath.Join(t.TempDir(), "none yet")}
	var got []string
	each := func(e Event) error { got = append(got, e.Node+fmt.Sprint(e.Time.Unix())); return nil }
	if err := f.Tell(t.Context(), Wish{Past: true}, each); err != nil || len(got) > 0 {
		t.Fatal(got, err)
	}
	if err := f.Append([]Event{numbered("a", 1), numbered("b", 2), numbered("a", 3), numbered("a", 4)}, false); err != nil {
		t.Fatal(err)
	}
	for want, w := range map[string]Wish{
		"a1 b2 a3 a4": {Past: true},
		"a3 a4":       {Past: true, Nodes: []string{"a"}, Since: time.Unix(2, 0)},
		"a1 b2":       {Past: true, Until: time.Unix(2, 0), Stream: true},
		"":            {},
	} {
		got = nil
		if err := f.Tell(t.Context(), w, each); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%+v: %v, %v; want %s", w, got, err, want)
		}
	}
}
