package space

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestName fills a tmpfs, by bytes and by inodes, and checks which file system the error names.
func TestName(t *testing.T) {
	testkit.NeedsRoot(t)
	other := t.TempDir()
	for _, c := range []struct{ what, options, want string }{
		{"bytes", "size=4096", "0 MiB free"},
		{"inodes", "size=4m,nr_inodes=2", "no inode free"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("berth-full", dir, "tmpfs", 0, c.options); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			var err error
			for i := range 3 {
				if e := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 4096), 0o600); e != nil {
					err = fmt.Errorf("write the journal: %w", e)
				}
			}
			want := fmt.Sprintf("; the file system at %s (tmpfs berth-full), %s, is full: free some of it", dir, c.want)
			for what, e := range map[string]error{"by the path": err, "by looking": fmt.Errorf("the runtime: %w", unix.ENOSPC)} {
				got := Name(e, other, filepath.Join(dir, "nodes", "not there"))
				if !errors.Is(got, unix.ENOSPC) || !strings.Contains(got.Error(), want) || strings.Contains(got.Error(), " or the file system") {
					t.Errorf("%s: %v; want %q", what, got, want)
				}
			}
		})
	}
	quota := &os.PathError{Op: "write", Path: other, Err: unix.EDQUOT}
	if got := Name(quota).Error(); !strings.Contains(got, "the file system at ") || !strings.Contains(got, "is at its quota for this folder") {
		t.Error(got)
	}
	control := &os.PathError{Op: "write", Path: "/proc/sys/kernel/hostname", Err: unix.ENOSPC}
	for _, err := range []error{nil, unix.EACCES, unix.ENOSPC, control, refuse.Cannotf("make room", "x is full: %w", unix.ENOSPC)} {
		if got := Name(err, other); got != err { //nolint:errorlint // the very same
			t.Errorf("%v became %v", err, got)
		}
	}
}
