package agent

import (
	"encoding/json"
	"testing"

	"berth/internal/site/iosync/want"
	"berth/internal/site/store"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestFileServers: an agent that has not heard of the site yet does not say that no host serves a file system; then it lists the servers of
// those that it is asked for.
func TestFileServers(t *testing.T) {
	memory := store.NewMemory()
	text, err := json.Marshal(want.Server{Path: "/srv", Server: "sftp", Way: want.Launch})
	testkit.Must(t, err)
	for _, fs := range []string{"shared", "scratch"} {
		_, err := memory.Commit(t.Context(), nil, []store.Op{{Key: store.Key(store.Filesystems, "b", fs), Value: text}})
		testkit.Must(t, err)
	}
	b := newBed(t, memory)
	if all, err := b.fileServers([]string{"shared"}); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("before the site was heard: %v, %v", all, err)
	}
	b.run()
	testkit.Must(t, b.view.whole(t.Context(), store.Filesystems))
	for want, of := range map[int][]string{2: nil, 1: {"shared"}, 0: {"shraed"}} {
		if all, err := b.fileServers(of); err != nil || len(all) != want {
			t.Errorf("of %q: %v, %v; want %d", of, all, err, want)
		}
	}
}
