package inroot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

func openFolder(t *testing.T) (int, string) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	testkit.Must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd, dir
}

// TestOpen: links are followed as in a chroot, never out of the folder.
func TestOpen(t *testing.T) {
	fd, dir := openFolder(t)
	testkit.Must(t, os.MkdirAll(dir+"/a/b", 0o755), os.WriteFile(dir+"/a/b/f", []byte("in"), 0o600),
		os.Symlink("/a/b", dir+"/abs"), os.Symlink("../../../a/b", dir+"/a/up"), os.Symlink("/proc/self/root/etc/passwd", dir+"/magic"))
	for name, ok := range map[string]bool{
		"a/b/f": true, "/a/b/f": true, "abs/f": true, "a/up/f": true, "../../a/b/f": true, "magic": false, "abs/../../../etc/passwd": false,
	} {
		f, err := Open(fd, name, unix.O_RDONLY, 0)
		if (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			unix.Close(f)
		}
	}
}

// TestOthersRename: while others rename, the kernel cannot resolve each "..". Open tries again.
func TestOthersRename(t *testing.T) {
	fd, dir := openFolder(t)
	way := strings.Repeat("d/../", 200) + "d" // so the race is lost soon
	testkit.Must(t, os.Mkdir(dir+"/d", 0o755))
	elsewhere := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(elsewhere, "a"), nil, 0o600))
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !stop.Load() {
			_ = os.Rename(filepath.Join(elsewhere, "a"), filepath.Join(elsewhere, "b"))
			_ = os.Rename(filepath.Join(elsewhere, "b"), filepath.Join(elsewhere, "a"))
		}
	}()
	defer func() {
		stop.Store(true)
		<-ended
	}()
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	testkit.Eventually(t, "the kernel gives up at \"..\"", func() bool {
		raw, err := unix.Openat2(fd, way, how)
		if err == nil {
			unix.Close(raw)
		}
		return errors.Is(err, unix.EAGAIN)
	})
	for range 300 {
		f, err := Open(fd, "d/../d", unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(f)
	}
}

// TestAgain: what the kernel could not do is tried again, but not for ever, and nothing else is.
func TestAgain(t *testing.T) {
	for _, c := range []struct {
		err        error
		fails, all int
	}{{unix.EAGAIN, 3, 4}, {unix.EAGAIN, 2 * tries, tries}, {unix.ENOENT, 5, 1}, {unix.EINTR, 1, 2}} {
		n := 0
		_, err := again(func() (int, error) {
			if n++; n <= c.fails {
				return -1, c.err
			}
			return 7, nil
		})
		if n != c.all || (err == nil) != (n > c.fails) {
			t.Errorf("%v %d times: tried %d times, %v", c.err, c.fails, n, err)
		}
	}
}
