package file

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// say is what a command writes.
func say(f *os.File) error { _, err := io.WriteString(f, "new"); return err }

// only checks that a folder has this file alone.
func only(t *testing.T, dir, name string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil || len(all) != 1 || all[0].Name() != name {
		t.Errorf("left: %v, %v", all, err)
	}
}

// TestOutput: what a user names is written to, or replaced if it is a file.
func TestOutput(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, mode := range []fs.FileMode{0o600, 0o644} { // a new one, and in the place of one
		if err := Output(path, mode, say); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if text, readErr := os.ReadFile(path); err != nil || readErr != nil || string(text) != "new" || st.Mode() != mode {
			t.Errorf("%q, %v, %v", text, st.Mode(), errors.Join(err, readErr))
		}
	}
	failed := errors.New("it failed")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Output(path, 0o600, func(f *os.File) error { return errors.Join(say(f), failed) })
	if text, _ := os.ReadFile(path); !errors.Is(err, failed) || string(text) != "old" {
		t.Errorf("%v; the file has %q", err, text)
	}
	only(t, dir, "f")
}

// TestOutputLinks: a link to a file is replaced as a file is; what it leads to stays.
func TestOutputLinks(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{outside, outside + "-which-is-not-there"} {
		path := filepath.Join(dir, "link")
		_ = os.Remove(path)
		if err := errors.Join(os.Symlink(to, path), Output(path, 0o600, say)); err != nil {
			t.Fatal(err)
		}
		st, err := os.Lstat(path)
		if text, _ := os.ReadFile(path); err != nil || !st.Mode().IsRegular() || string(text) != "new" {
			t.Errorf("to %s: %v, %q, %v", to, st.Mode(), text, err)
		}
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "old" {
		t.Errorf("what the link led to: %q, %v", text, err)
	}
	only(t, dir, "link")
}

// TestOutputDevice: a device, a FIFO and a link to one stay, and get what is written.
func TestOutputDevice(t *testing.T) {
	dir := t.TempDir()
	null, fifo, link := filepath.Join(dir, "null"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	testkit.NeedsRoot(t)
	if err := errors.Join(unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mkfifo(fifo, 0o600), os.Symlink(fifo, link)); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	for _, path := range []string{null, fifo, link} {
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if path != null {
			go func() { text, _ := os.ReadFile(fifo); got <- string(text) }()
		}
		if err := Output(path, 0o600, say); err != nil {
			t.Fatal(err)
		}
		if path != null {
			if text := <-got; text != "new" {
				t.Errorf("through %s came %q", path, text)
			}
		}
		if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s is another one: %v, %v", path, after, err)
		}
	}
}

// TestOutputOfAnother: a FIFO, a device and a pipe of another user get nothing, nor does what that user's link leads to. Nobody waits for a reader.
func TestOutputOfAnother(t *testing.T) {
	testkit.NeedsRoot(t)
	const another = 12345
	dir := t.TempDir()
	null, fifo, link := filepath.Join(dir, "null"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := errors.Join(unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mkfifo(fifo, 0o600), os.Symlink("/dev/null", link),
		os.Chown(null, another, another), os.Chown(fifo, another, another), os.Lchown(link, another, another), w.Chown(another, another)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{null, fifo, link, descriptor(w)} {
		for what, refused := range map[string]func() error{
			"check":  func() error { return CheckOutput(path) },
			"output": func() error { return Output(path, 0o600, say) },
		} {
			answer := make(chan error, 1)
			go func() { answer <- refused() }()
			select {
			case err := <-answer:
				if refuse.KindOf(err) != refuse.Cannot {
					t.Errorf("%s of %s: %v", what, path, err)
				}
			case <-time.After(testkit.Bound()):
				t.Fatalf("%s of %s waits", what, path)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || len(text) > 0 {
		t.Errorf("through the pipe came %q, %v", text, err)
	}
}

// TestOutputGiven: a pipe of another user gets what is written where it is what the caller was given as a standard stream.
func TestOutputGiven(t *testing.T) {
	testkit.NeedsRoot(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	was := os.Stdin
	os.Stdin = w
	err = errors.Join(w.Chown(12345, 12345), Output(descriptor(w), 0o600, say), w.Close())
	os.Stdin = was
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "new" {
		t.Errorf("through it came %q, %v", text, err)
	}
}

// TestOutputRefused: what cannot be written to is refused before anything is done for it.
func TestOutputRefused(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for path, kind := range map[string]refuse.Kind{
		dir: refuse.Invalid, filepath.Join(dir, "socket"): refuse.Invalid, "/": refuse.Invalid, filepath.Join(dir, "no/f"): refuse.Failed,
	} {
		err := Output(path, 0o600, func(*os.File) error { t.Error("it was written"); return nil })
		if refuse.KindOf(err) != kind || refuse.KindOf(CheckOutput(path)) != kind {
			t.Errorf("%s: %v", path, err)
		}
	}
	only(t, dir, "socket")
}
