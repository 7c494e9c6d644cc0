package counters

import (
	"os"
	"path/filepath"
	"testing"
)

// TestStacked: what lies on another disk is told from a disk.
func TestStacked(t *testing.T) {
	sys := t.TempDir()
	for _, dir := range []string{"253:0/slaves/vdb", "7:0/loop", "7:0/slaves", "7:1/loop", "254:16/slaves"} {
		if err := os.MkdirAll(filepath.Join(sys, "dev/block", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for loop, dio := range map[string]string{"7:0": "1\n", "7:1": "0\n"} {
		if err := os.WriteFile(filepath.Join(sys, "dev/block", loop, "loop/dio"), []byte(dio), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for d, want := range map[DiskCount]bool{{Major: 253}: true, {Major: 7}: true, {Major: 7, Minor: 1}: false, {Major: 254, Minor: 16}: false, {Major: 8}: false} {
		if got := d.stacked(sys); got != want {
			t.Errorf("%d:%d: %v", d.Major, d.Minor, got)
		}
	}
}
