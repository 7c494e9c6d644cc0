package cli

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/testkit"
)

// TestTogether: nodes are done several at once; what they say is in their order; one that fails or hangs does not stop the others.
func TestTogether(t *testing.T) {
	var out bytes.Buffer
	a := &app{Streams: Streams{Out: &out}}
	most := 2 * runtime.NumCPU()
	var at, highest, done atomic.Int32
	all := make(chan struct{})
	nodes := 10 * most
	err := a.together(nodes, func(int) bool { return false }, func(i int, out io.Writer) error {
		defer at.Add(-1)
		n := at.Add(1)
		for old := highest.Load(); n > old && !highest.CompareAndSwap(old, n); old = highest.Load() {
		}
		if done.Add(1) == int32(nodes) {
			close(all)
		}
		if i == 0 {
			<-all // the first one ends last
		}
		fmt.Fprintf(out, "%d ", i)
		if i == 3 || i == 7 {
			return fmt.Errorf("failed %d", i)
		}
		return nil
	})
	if err == nil || err.Error() != "failed 3\nfailed 7" {
		t.Errorf("error: %v", err)
	}
	var want bytes.Buffer
	for i := range nodes {
		fmt.Fprintf(&want, "%d ", i)
	}
	if diff := cmp.Diff(want.String(), out.String()); diff != "" {
		t.Error(diff)
	}
	if n := int(highest.Load()); n < 2 || n > most {
		t.Errorf("%d at once, of at most %d", n, most)
	}
}

// TestServersAndClients: clients of file servers are done after the nodes that come before them, and before those that come after.
func TestServersAndClients(t *testing.T) {
	a := &app{Streams: Streams{Out: io.Discard}}
	kinds := "ssccccsc" // servers and clients
	var mutex sync.Mutex
	var ended []int
	err := a.together(len(kinds), func(i int) bool { return kinds[i] == 'c' }, func(i int, _ io.Writer) error {
		mutex.Lock()
		defer mutex.Unlock()
		for before := range i {
			if kinds[before] == kinds[i] {
				continue
			}
			if !slices.Contains(ended, before) {
				return fmt.Errorf("%d began before %d had ended", i, before)
			}
		}
		ended = append(ended, i)
		return nil
	})
	testkit.Must(t, err)
	if len(ended) != len(kinds) {
		t.Errorf("done: %v", ended)
	}
}
