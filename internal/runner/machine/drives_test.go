package machine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/sys/refuse"
	"berth/test/loop"
	"berth/test/testkit"
)

// opened opens a disk of a machine, and closes it again.
func opened(at string) (drive, error) {
	d := drive{Disk: runner.Disk{Path: at}, serial: "disk0"}
	err := d.open()
	for _, f := range d.files {
		f.Close()
	}
	return d, err
}

// TestSectors: the guest's disk has the sectors of the host's.
func TestSectors(t *testing.T) {
	testkit.NeedsRoot(t)
	d, err := opened(loop.OfSectors(t, 1<<20, 4096))
	testkit.Must(t, err)
	if args := strings.Join(d.arguments(2, func() int { return 9 }), " "); !strings.Contains(args, ",logical_block_size=4096,") {
		t.Errorf("the disk is %s", args)
	}
}

// TestCachedDisk: a file that the kernel reads and writes by the page cache, although it was opened for direct I/O, is no disk of a machine.
func TestCachedDisk(t *testing.T) {
	testkit.NeedsRoot(t)
	disk, dir := loop.ForTest(t, 64<<20), t.TempDir()
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", disk).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	file := filepath.Join(dir, "file")
	for _, c := range []struct {
		mode string
		want refuse.Kind
	}{{"data=ordered", 0}, {"data=journal", refuse.Cannot}} {
		testkit.Must(t, unix.Mount(disk, dir, "ext4", 0, c.mode))
		err := os.WriteFile(file, make([]byte, 8192), 0o600)
		if err == nil {
			_, err = opened(file)
		}
		testkit.Must(t, unix.Unmount(dir, 0))
		if got := refuse.KindOf(err); got != c.want {
			t.Errorf("%s: %v, of kind %d, want %d", c.mode, err, got, c.want)
		}
	}
}
