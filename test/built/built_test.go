package built

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBerth checks that the second program of a run is a copy of the first, and that each can be run.
func TestBerth(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a longer run: it builds berth")
	}
	dir := t.TempDir()
	t.Setenv(Dir, dir)
	for _, out := range []string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")} {
		if err := Berth(t.Context(), out); err != nil {
			t.Fatal(err)
		}
		if text, err := exec.Command(out, "--help").CombinedOutput(); err != nil || !strings.Contains(string(text), "berth") {
			t.Errorf("%s: %v: %s", out, err, text)
		}
		if kept, err := os.ReadDir(dir); err != nil || len(kept) != 1 || kept[0].Name() != "berth" {
			t.Errorf("kept are %v, %v", kept, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "berth"), []byte("#!/bin/sh\necho berth, the one that was kept\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
