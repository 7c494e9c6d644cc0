package streams

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// command runs a program with the command's ends, like a caller of Open.
func command(t *testing.T, s *Streams, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	for to, f := range map[*io.Writer]*os.File{&cmd.Stdout: s.Out, &cmd.Stderr: s.Err} {
		if f != nil {
			*to = f
		}
	}
	if s.In != nil {
		cmd.Stdin = s.In
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.Started()
	return cmd
}

// relayed runs a program through a relay and returns the program's exit code and the relay's error.
func relayed(t *testing.T, in, out, errs *os.File, args ...string) (code int, err error) {
	t.Helper()
	s, err := Open(in, out, errs)
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(t, s, args...)
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode(), s.Close(t.Context())
}

func open(t *testing.T, name string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func devNull(t *testing.T) *os.File {
	t.Helper()
	return open(t, os.DevNull, os.O_RDWR)
}

func pair(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// noise returns pseudo-random bytes, the same in each run.
func noise(size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

// TestWhole checks that all data arrives in order, for every kind of file at either end.
func TestWhole(t *testing.T) {
	data := noise(5<<20 + 7)
	dir := t.TempDir()
	file := filepath.Join(dir, "in")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	inputs := map[string]func(t *testing.T) *os.File{
		"file": func(t *testing.T) *os.File { return open(t, file, os.O_RDONLY) },
		"pipe": func(t *testing.T) *os.File {
			r, w := pair(t)
			go func() { _, _ = w.Write(data); w.Close() }()
			return r
		},
		"socket": func(t *testing.T) *os.File {
			ours, theirs := sockets(t)
			go func() { _, _ = ours.Write(data); ours.Close() }()
			return theirs
		},
	}
	outputs := map[string]func(t *testing.T) (*os.File, func() []byte){
		"file": func(t *testing.T) (*os.File, func() []byte) {
			name := filepath.Join(t.TempDir(), "out")
			return open(t, name, os.O_WRONLY|os.O_CREATE), func() []byte { b, _ := os.ReadFile(name); return b }
		},
		"pipe": func(t *testing.T) (*os.File, func() []byte) {
			r, w := pair(t)
			return w, collect(r, w)
		},
		"socket": func(t *testing.T) (*os.File, func() []byte) {
			ours, theirs := sockets(t)
			return theirs, collect(ours, theirs)
		},
	}
	for from, in := range inputs {
		for to, out := range outputs {
			t.Run(from+" to "+to, func(t *testing.T) {
				f, got := out(t)
				code, err := relayed(t, in(t), f, devNull(t), "cat")
				if b := got(); err != nil || code != 0 || !bytes.Equal(b, data) {
					t.Errorf("%d bytes of %d, exit code %d, %v", len(b), len(data), code, err)
				}
			})
		}
	}
}

// collect reads r in the background. The function that it returns closes w and returns the data.
func collect(r io.Reader, w io.Closer) func() []byte {
	got := make(chan []byte, 1)
	go func() { b, _ := io.ReadAll(r); got <- b }()
	return func() []byte { w.Close(); return <-got }
}

// sockets returns a connected pair; theirs blocks, like a socket that a service inherits.
func sockets(t *testing.T) (ours net.Conn, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "socket")
	defer f.Close()
	if ours, err = net.FileConn(f); err != nil {
		t.Fatal(err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "socket")
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// TestUnreadStays checks that input which the command did not read stays with the caller, for a file, a pipe and a
// socket.
func TestUnreadStays(t *testing.T) {
	const text = "one\ntwo\nthree\n"
	file := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, w := pair(t)
	ours, theirs := sockets(t)
	for _, to := range []io.WriteCloser{w, ours} {
		if _, err := io.WriteString(to, text); err != nil {
			t.Fatal(err)
		}
		to.Close()
	}
	for what, in := range map[string]*os.File{"file": open(t, file, os.O_RDONLY), "pipe": r, "socket": theirs} {
		t.Run(what, func(t *testing.T) {
			for _, args := range [][]string{{"true"}, {"dd", "bs=4", "count=1", "status=none"}, {"true"}} {
				if code, err := relayed(t, in, devNull(t), devNull(t), args...); err != nil || code != 0 {
					t.Fatal(err, code)
				}
			}
			rest, err := io.ReadAll(in)
			if err != nil || string(rest) != "two\nthree\n" {
				t.Errorf("left are %q (%v)", rest, err)
			}
		})
	}
}

// TestUnreadOfALargeFile checks that the offset in a file is exact, even if most of the file was given to the command.
func TestUnreadOfALargeFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(file, noise(1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, file, os.O_RDONLY)
	for i := range int64(5) {
		if code, err := relayed(t, f, devNull(t), devNull(t), "dd", "bs=100001", "count=2", "iflag=fullblock", "status=none"); err != nil || code != 0 {
			t.Fatal(err, code)
		}
		if at, err := f.Seek(0, io.SeekCurrent); err != nil || at != (i+1)*200002 {
			t.Errorf("at %d, want %d (%v)", at, (i+1)*200002, err)
		}
	}
}

// TestOrder checks that output and errors that lead to the same place keep their order.
func TestOrder(t *testing.T) {
	const script = "i=0; while [ $i -lt 300 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
	want, err := exec.CommandContext(t.Context(), "sh", "-c", script+" 2>&1").Output()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "out")
	same := open(t, name, os.O_WRONLY|os.O_CREATE)
	r, w := pair(t)
	again := open(t, fmt.Sprintf("/proc/self/fd/%d", w.Fd()), os.O_WRONLY)
	got := collect(r, w)
	for what, files := range map[string][2]*os.File{"one file": {same, same}, "a pipe, opened twice": {w, again}} {
		if code, err := relayed(t, devNull(t), files[0], files[1], "sh", "-c", script); err != nil || code != 0 {
			t.Fatal(what, err, code)
		}
	}
	again.Close()
	if b, _ := os.ReadFile(name); !bytes.Equal(b, want) {
		t.Errorf("the file holds\n%s", b)
	}
	if b := got(); !bytes.Equal(b, want) {
		t.Errorf("through the pipe came\n%s", b)
	}
}

// TestAppend checks that a file which the caller opened for appending is appended to, even if others write to it
// meanwhile.
func TestAppend(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(name, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(devNull(t), open(t, name, os.O_WRONLY|os.O_APPEND), open(t, name, os.O_WRONLY|os.O_APPEND))
	if err != nil {
		t.Fatal(err)
	}
	if s.Out != s.Err {
		t.Error("two ways to append to one file have two pipes: their order is lost")
	}
	if _, err := open(t, name, os.O_WRONLY|os.O_APPEND).WriteString("others\n"); err != nil {
		t.Fatal(err)
	}
	_ = command(t, s, "echo", "ours").Wait()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(name); string(b) != "before\nothers\nours\n" {
		t.Errorf("the file holds %q", b)
	}
}

// TestWriteFails checks that a full disk is reported, and that a reader who left ends the command by SIGPIPE.
func TestWriteFails(t *testing.T) {
	if _, err := relayed(t, devNull(t), open(t, "/dev/full", os.O_WRONLY), devNull(t), "echo", "x"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	r, w := pair(t)
	r.Close()
	s, err := Open(devNull(t), w, devNull(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(t, s, "cat", "/dev/zero")
	_ = cmd.Wait() // it ends only by SIGPIPE
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("nobody reads: %v", err)
	}
	if got := cmd.ProcessState.String(); !strings.Contains(got, "broken pipe") {
		t.Errorf("the command ended with %s", got)
	}
}

// TestReaderWaits checks that a reader who does not read delays Close until the user interrupts it.
func TestReaderWaits(t *testing.T) {
	_, w := pair(t)
	s, err := Open(devNull(t), w, devNull(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = command(t, s, "head", "-c", "100000", "/dev/zero").Wait() // more than the caller's pipe holds
	ctx, cancel := context.WithCancel(t.Context())
	closed := make(chan error, 1)
	go func() { closed <- s.Close(ctx) }()
	cancel()
	if err := <-closed; err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("got %v", err)
	}
}

// TestReadFails checks that an unreadable input is reported, and not treated as end of file.
func TestReadFails(t *testing.T) {
	if _, err := relayed(t, open(t, filepath.Join(t.TempDir(), "f"), os.O_WRONLY|os.O_CREATE), devNull(t), devNull(t), "cat"); !errors.Is(err, unix.EBADF) {
		t.Errorf("an input that is open for writing only: %v", err)
	}
}

// TestFolder checks that a folder is refused.
func TestFolder(t *testing.T) {
	dir := open(t, "/", os.O_RDONLY)
	for _, files := range [][3]*os.File{{dir, devNull(t), devNull(t)}, {devNull(t), dir, devNull(t)}, {devNull(t), devNull(t), dir}} {
		if _, err := Open(files[0], files[1], files[2]); refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), "folder") {
			t.Errorf("got %v", err)
		}
	}
}

// TestEndsWithTheCommand checks that the relay ends with the command, even if nobody writes its input and other
// processes write to the streams for ever, and that everything the command wrote is out.
func TestEndsWithTheCommand(t *testing.T) {
	silent, held := pair(t)
	defer held.Close()
	name := filepath.Join(t.TempDir(), "out")
	s, err := Open(silent, open(t, name, os.O_WRONLY|os.O_CREATE), devNull(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(t, s, "sh", "-c", "echo first; yes >&1 & echo $! >&2; echo last") // stderr is null
	_ = cmd.Wait()
	closed := make(chan error, 1)
	go func() { closed <- s.Close(t.Context()) }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testkit.Bound()):
		t.Fatal("the relay waits for a process that the command left behind")
	}
	b, err := os.ReadFile(name)
	if err != nil || !bytes.Contains(b, []byte("first\n")) || !bytes.Contains(b, []byte("last\n")) {
		t.Errorf("lost: %d bytes (%v)", len(b), err)
	}
}

// TestNonBlocking checks that the relay waits for a caller's files that somebody made non-blocking.
func TestNonBlocking(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	t.Cleanup(func() { r.Close(); w.Close() })
	for _, fd := range fds { // after NewFile, which would register them with Go's poller
		if err := unix.SetNonblock(fd, true); err != nil {
			t.Fatal(err)
		}
	}
	data := noise(1 << 20)
	in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(in, data, 0o600); err != nil {
		t.Fatal(err)
	}
	to := open(t, out, os.O_WRONLY|os.O_CREATE)
	reader, err := Open(r, to, devNull(t))
	if err != nil {
		t.Fatal(err)
	}
	cat := command(t, reader, "cat")
	if code, err := relayed(t, open(t, in, os.O_RDONLY), w, devNull(t), "cat"); err != nil || code != 0 {
		t.Fatal(err, code)
	}
	w.Close()
	_ = cat.Wait()
	if err := reader.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(out); err != nil || !bytes.Equal(b, data) {
		t.Errorf("%d of %d bytes (%v)", len(b), len(data), err)
	}
}

// TestNothingOfTheCallers checks that the command's ends are the relay's own pipes.
func TestNothingOfTheCallers(t *testing.T) {
	r, w := pair(t)
	s, err := Open(r, w, w)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { w.Close(); _ = s.Close(t.Context()) }()
	inode := func(f *os.File) (uint64, uint32) {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino, st.Mode & unix.S_IFMT
	}
	theirs, _ := inode(r)
	for _, f := range s.Files() {
		if ino, mode := inode(f); ino == theirs || mode != unix.S_IFIFO {
			t.Error("the command gets the caller's pipe")
		}
	}
}
