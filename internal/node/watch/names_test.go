package watch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/internal/network/netserve"
	"berth/internal/sys/proc"
	"berth/test/testkit"
)

// TestMain: the process that serves names is this program.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "netserve" {
		if err := netserve.Run(context.Background(), 3); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestNamesOneByOne: a keeper that was just started follows its nodes one after the other. A node that it follows when the
// process runs again, for an earlier node, is served too.
func TestNamesOneByOne(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	places := netserve.Places{Socket: filepath.Join(dir, "socket"), Lock: filepath.Join(dir, "lock"), Log: filepath.Join(dir, "log")}
	ctx, cancel := context.WithCancel(t.Context())
	w := &Names{
		Keeper: Keeper{Log: slog.New(slog.DiscardHandler), Work: func(f func()) { f() }},
		Places: places,
		Has:    func(string) bool { return true },
		Again: func(ctx context.Context, node string) (bool, error) {
			return true, places.Set(ctx, &netserve.Entry{Node: node})
		},
	}
	t.Cleanup(func() {
		cancel()
		for _, node := range []string{"n1", "n2"} {
			if err := places.Drop(context.Background(), node); err != nil {
				t.Error(err)
			}
		}
	})
	served := func(node string) {
		t.Helper()
		var err error
		if !testkit.Happens(func() bool {
			var lacking []string
			lacking, err = places.Lacks([]string{node})
			return err == nil && len(lacking) == 0
		}) {
			t.Fatalf("%s is not served: %v", node, err)
		}
	}
	w.Watch(ctx, "n1", proc.ID{})
	served("n1")
	time.Sleep(200 * time.Millisecond) // until it waits for the end of the process, with n1 alone
	w.Watch(ctx, "n2", proc.ID{})
	served("n2")
}
