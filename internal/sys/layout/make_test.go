package layout

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/sys/refuse"
)

// TestMakeMakesNothingInAClosedFolder: a root below a folder that is closed to others is refused before anything is made.
func TestMakeMakesNothingInAClosedFolder(t *testing.T) {
	top, err := os.MkdirTemp("/tmp", "berth-layout-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	for dir, mode := range map[string]fs.FileMode{top: 0o711, top + "/open": 0o711, top + "/closed": 0o700} {
		if err := errors.Join(os.MkdirAll(dir, 0o711), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
	}
	closed := filepath.Join(top, "closed/deep/root")
	for name, do := range map[string]func() error{"Make": New(closed).Make, "Reachable": New(closed).Reachable} {
		if err := do(); refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%s below a closed folder: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Dir(closed)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made below the closed folder: %v", err)
	}
	open := New(filepath.Join(top, "open/deep/root"))
	if err := open.Reachable(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(open.Run); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Reachable made something: %v", err)
	}
	if err := open.Make(); err != nil {
		t.Error(err)
	}
}

// TestLongRoot: a root is refused where the longest name of a socket in it would be too long for the kernel, and not one byte before.
func TestLongRoot(t *testing.T) {
	fits := "/" + strings.Repeat("r", 107-len("//run/netserve.sock"))
	if err := New(fits).Reachable(); err != nil {
		t.Error(err)
	}
	if err := New(fits + "r").Reachable(); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("a root of %d bytes: %v", len(fits)+1, err)
	}
	l := New(fits[:50])
	if err := l.FitsSocket(l.Node("short").TTY()); err != nil {
		t.Error(err)
	}
	if err := l.FitsSocket(l.Node(strings.Repeat("n", 48)).TTY()); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("a node with the longest name: %v", err)
	}
}
