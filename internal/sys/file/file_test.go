package file

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path+Unwritten, []byte("what a killed writer left, and longer"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"old", "new"} {
		if err := Write(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// TestWriteOverAnothers: what another user put where a file is made first is not written into: neither a file, which the user has open and
// whose mode lets everybody read, nor what a link leads to.
func TestWriteOverAnothers(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "key"), filepath.Join(dir, "victim")
	for _, write := range []func(string, []byte, os.FileMode) error{Write, WriteForBoot} {
		if err := errors.Join(os.WriteFile(path+Unwritten, nil, 0o666), os.Chmod(path+Unwritten, 0o666)); err != nil {
			t.Fatal(err)
		}
		open, err := os.Open(path + Unwritten)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(path, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(open); err != nil || len(text) > 0 {
			t.Errorf("who had the file open reads %q, %v", text, err)
		}
		open.Close()
		if is, err := os.Stat(path); err != nil || is.Mode() != 0o600 {
			t.Errorf("%v, %v", is.Mode(), err)
		}
		if err := errors.Join(os.WriteFile(victim, []byte("victim"), 0o600), os.Symlink(victim, path+Unwritten)); err != nil {
			t.Fatal(err)
		}
		if err := write(path, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(victim); err != nil || string(text) != "victim" {
			t.Errorf("what the link led to has %q, %v", text, err)
		}
		if is, err := os.Lstat(path); err != nil || is.Mode() != 0o600 {
			t.Errorf("%v, %v", is.Mode(), err)
		}
	}
}

func TestWriteFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := Write(path, []byte("x"), 0o600) // a folder that is not empty cannot be replaced
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path + Unwritten); !os.IsNotExist(err) {
		t.Error("the temporary file is left")
	}
}

// TestRemoveTwice: who removes what is gone already waits for the disk, too: the first one may have been killed before it did. /proc shows that: it has
// nothing to sync, and says so.
func TestRemoveTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}
	if err := Remove(filepath.Join(path, "below", "f")); err != nil {
		t.Errorf("below no folder: %v", err)
	}
	if err := Remove("/proc/self/none"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("the folder is not synced: %v", err)
	}
}
