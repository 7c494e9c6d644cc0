package image

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestNoInode imports more files than the file system has inodes: that is told, though there is space for bytes, and though the files are removed
// before the user reads it.
func TestNoInode(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("berth-inodes", dir, "tmpfs", 0, "size=64m,nr_inodes=60"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var files []E
	for i := range 100 {
		files = append(files, E{Name: fmt.Sprint("f", i)})
	}
	_, err := Open(layout.New(dir)).Import(t.Context(), imagetest.OCIArchive(t, imagetest.Image{Layers: [][]byte{imagetest.Layer(t, files...)}}), As{Name: "x"}, nil)
	want := fmt.Sprintf("the file system at %s (tmpfs berth-inodes) has no inode free", dir)
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "is full") {
		t.Errorf("%v, want %q", err, want)
	}
}
