package audit

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/spec/roles"
	"berth/test/testkit"
)

// TestDiskFull: a disk that is full in the middle of a line costs that line alone: the next one, once there is room, is whole and by itself.
func TestDiskFull(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	path := filepath.Join(dir, "audit.log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	act := Line{Who: "root", Role: roles.Admin, Via: roles.ViaTLS, Act: roles.NodeEnd, Result: Done, Detail: strings.Repeat("x", 777)}
	fills := filepath.Join(dir, "fills")
	if err := os.WriteFile(fills, make([]byte, 20<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	kept := 0
	for l.Add(act) == nil {
		kept++
	}
	if err := os.Remove(fills); err != nil {
		t.Fatal(err)
	}
	act.Detail = "after"
	if err := l.Add(act); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := 0
	var last Line
	for one := range strings.Lines(string(text)) {
		var read Line
		if json.Unmarshal([]byte(one), &read) == nil {
			whole, last = whole+1, read
		}
	}
	if whole != kept+1 || last.Detail != "after" {
		t.Errorf("%d lines can be read, want %d; the last is of %q", whole, kept+1, last.Detail)
	}
}

// TestNoTurn: a full file that cannot be put aside, or after which no other can be begun, takes acts all the same, and loses none.
func TestNoTurn(t *testing.T) {
	for what, turned := range map[string]func(*testing.T, string) (string, error){
		"not put aside": func(_ *testing.T, path string) (string, error) { return filepath.Join(path, "none"), nil },
		"no other": func(t *testing.T, path string) (string, error) {
			fewFiles(t, 1) // one for the new file, none to sync its folder
			return one(path)
		},
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			l, err := open(path, 1000)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			tried := 0
			l.acts.turned = func(path string) (string, error) { tried++; return turned(t, path) }
			for range 20 {
				if err := l.Add(Line{Who: "root", Role: roles.Admin, Via: roles.ViaTLS, Act: roles.NodeEnd, Result: Done}); err != nil {
					t.Fatal(err)
				}
			}
			info, err := l.acts.file.Stat()
			if err != nil || info.Size() != l.acts.size || tried == 0 {
				t.Errorf("the file has %d bytes, and is said to have %d; turned %d times; %v", info.Size(), l.acts.size, tried, err)
			}
			if all := lines(t, path); len(all) != 20 {
				t.Errorf("%d lines are there", len(all))
			}
		})
	}
}

// fewFiles lets this process open only so many more files, until the test ends.
func fewFiles(t *testing.T, more uint64) {
	t.Helper()
	next, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // it is so already
	}
	unix.Close(next)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next) + more, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
}

// TestOldStays: an old file that cannot be removed does not keep the full one from being put aside.
func TestOldStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := open(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	old := path + ".kept" // somebody's folder: it looks like a file that is too old, and cannot be removed
	if err := os.MkdirAll(filepath.Join(old, "more"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-keepFor-time.Hour)); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := l.Add(Line{Who: "root", Role: roles.Admin, Via: roles.ViaTLS, Act: roles.NodeEnd, Result: Done}); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 1000 {
		t.Errorf("the newest file has %d bytes, %v", info.Size(), err)
	}
}

// TestNotOnDisk: a line that may not be on the disk is refused, and is not in the file.
func TestNotOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begins := func() error {
		return l.Add(Line{Who: "root", Role: roles.Admin, Via: roles.ViaTLS, Act: roles.NodeEnd, Result: Begins, Begun: true})
	}
	if err := begins(); err != nil {
		t.Fatal(err)
	}
	defer func() { onDisk = unix.Fdatasync }()
	onDisk = func(int) error { return unix.EIO }
	if err := begins(); !errors.Is(err, unix.EIO) {
		t.Errorf("not on the disk: %v", err)
	}
	onDisk = unix.Fdatasync
	if err := begins(); err != nil {
		t.Fatal(err)
	}
	if all := lines(t, path); len(all) != 2 {
		t.Errorf("%d lines are there, want 2", len(all))
	}
}

// TestHungSystemLog: acts do not wait, one after the other, for a system's log that takes nothing, and it gets lines again when it does.
func TestHungSystemLog(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "log")
	hangs, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	s := &system{at: socket}
	line := []byte(strings.Repeat("x", 1000))
	for !s.fails { // its queue fills
		s.tell(line)
	}
	const acts = 40
	began := time.Now()
	for range acts {
		s.tell(line)
	}
	if took := time.Since(began); took > acts*hears/2 {
		t.Errorf("%d acts waited %s", acts, took)
	}
	if err := hangs.SetReadDeadline(time.Now().Add(testkit.Bound())); err != nil {
		t.Fatal(err)
	}
	for s.fails {
		if _, err := hangs.Read(make([]byte, 2000)); err != nil {
			t.Fatal(err)
		}
		s.tell(line)
	}
}
