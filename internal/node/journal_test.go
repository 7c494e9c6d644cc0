package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/host"
	"berth/internal/sys/layout"
	"berth/internal/sys/step"
)

// TestBootIDUnreadable: a node's journal is dropped after a reboot. An error while the boot id is read is no reboot.
func TestBootIDUnreadable(t *testing.T) {
	l := layout.New(t.TempDir())
	dirs := l.Node("n")
	if err := os.MkdirAll(dirs.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	j, err := step.Create(dirs.Journal(), "n", "the boot before")
	if err == nil {
		err = j.SetPhase(step.Up)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := Open(l, Beside{})
	b.Host = host.Host{Proc: t.TempDir()} // there is no boot id in it
	if did, _, err := b.settleLive(t.Context(), "n"); err == nil || !strings.Contains(err.Error(), "read the boot id") || did != "" {
		t.Errorf("did %q, %v", did, err)
	}
	if _, err := os.Stat(dirs.Journal()); err != nil {
		t.Fatalf("the journal is gone: %v", err)
	}
	id := filepath.Join(b.Host.Proc, "sys/kernel/random/boot_id")
	if err := os.MkdirAll(filepath.Dir(id), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(id, []byte("this boot\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if did, _, err := b.settleLive(t.Context(), "n"); err != nil || did != "stopped by a reboot" {
		t.Errorf("did %q, %v", did, err)
	}
	if _, err := os.Stat(dirs.Run); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after a reboot the live folder is still there: %v", err)
	}
}
