package agent

import (
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/site/agentconf"
	"berth/internal/site/store"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestBackupRefused: only a host that keeps the cluster state backs it up or restores it, the one while it runs, the other from a backup that is there.
func TestBackupRefused(t *testing.T) {
	t.Parallel()
	l, path := layout.New(testkit.Dir(t, "")), filepath.Join(t.TempDir(), "backup")
	none := &agentconf.Config{Host: "a", Socket: filepath.Join(t.TempDir(), "socket")}
	keeps := &agentconf.Config{Host: "a", Socket: none.Socket}
	keeps.Store.Embedded = &agentconf.Embedded{Dir: filepath.Join(t.TempDir(), "state")}
	for name, c := range map[string]struct {
		err  error
		kind refuse.Kind
		text string
	}{
		"backup, elsewhere":    {Backup(t.Context(), none, path), refuse.Cannot, "no cluster state to back up"},
		"restore, elsewhere":   {Restore(none, l, path), refuse.Cannot, "no cluster state to restore"},
		"backup of none":       {Backup(t.Context(), keeps, path), refuse.Cannot, "berthd does not run"},
		"restore of no backup": {Restore(keeps, l, path), refuse.NotFound, path},
	} {
		if c.err == nil || refuse.KindOf(c.err) != c.kind || !strings.Contains(c.err.Error(), c.text) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

// TestTooMany: a spec with more new nodes than the host takes is refused as a whole, before the host is asked to make one.
func TestTooMany(t *testing.T) {
	b := newBed(t, store.NewMemory())
	b.conf.Slots = 1
	host := &bounded{agent: b.Agent} // no host: whatever were asked of it would end this test
	_, err := host.Apply(t.Context(), "spec", []byte("name: one\nimage: host\ncommand: [/bin/true]\n---\nname: two\nimage: host\ncommand: [/bin/true]\n"), false)
	if err == nil || !strings.Contains(err.Error(), "two") {
		t.Errorf("%v", err)
	}
	if len(b.taking) > 0 {
		t.Errorf("places are kept: %v", b.taking)
	}
}
