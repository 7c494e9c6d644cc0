package imagetest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"berth/internal/image/imagetest"
	"berth/test/testkit"
)

func TestBusyboxDirIsARoot(t *testing.T) {
	dir := imagetest.BusyboxDir(t)
	for _, f := range []string{"bin/busybox", "etc/inittab", "etc/init.d/rcS"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			t.Error(err)
		}
	}
	if link, err := os.Readlink(filepath.Join(dir, "sbin/init")); err != nil || link != "/bin/busybox" {
		t.Errorf("sbin/init is %q, %v", link, err)
	}
	testkit.NeedsRoot(t)
	out, err := exec.Command("chroot", dir, "/bin/sh", "-c", "echo hello").CombinedOutput()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("sh in it said %q, %v", out, err)
	}
}

func TestBusyboxArchiveExists(t *testing.T) {
	if info, err := os.Stat(imagetest.Busybox(t)); err != nil || info.Size() < 1<<20 {
		t.Errorf("archive: %v, %v", info, err)
	}
}
