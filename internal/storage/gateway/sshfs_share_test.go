package gateway

import (
	"path/filepath"
	"slices"
	"testing"

	"berth/internal/storage/mounts"
	"berth/test/testkit"
)

// TestShared: a mount with via: host names its server and the other nodes that use it; a mount of the node's own is shared with nobody.
func TestShared(t *testing.T) {
	s := &SSHFSMount{Server: "192.0.2.1:22", User: "one.m0"}
	if server, nodes := s.Shared(); server != "" || len(nodes) > 0 {
		t.Errorf("a mount of its own: %q %q", server, nodes)
	}
	s.Hold = mounts.Hold{Dir: filepath.Join(t.TempDir(), "hold")}
	for _, user := range []string{s.User, "two.m0", "three.m12"} {
		testkit.Must(t, s.users().add(user))
	}
	if server, nodes := s.Shared(); server != s.Server || !slices.Equal(nodes, []string{"three", "two"}) {
		t.Errorf("%q %q", server, nodes)
	}
}
