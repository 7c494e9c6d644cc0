package security

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/test/env"
	"berth/test/testkit"
)

// callers returns the arguments of each way to pass one's own files to a command in a node: by run and by exec, with and without a
// user namespace. The probe's own arguments follow them.
func callers(t *testing.T, w *world) map[string][]string {
	t.Helper()
	dir := imagetest.BusyboxDir(t)
	addProbe(t, dir)
	closed, open := w.up(t, ""), w.up(t, "image: dir:"+dir+"\nuser_namespace: false\ncommand: [/bin/sleep, \"100000\"]")
	return map[string][]string{
		"run":            {"run", "--image", "host", "--mount", build.probeDir + ":/probe:ro", "--", "/probe/probe"},
		"run no-userns":  {"run", "--image", "dir:" + dir, "--no-user-namespace", "--", "/probe"},
		"exec":           {"exec", closed, "--", "/probe/probe"},
		"exec no-userns": {"exec", open, "--", "/probe"},
	}
}

// lastLine decodes the probe's answer, which follows the text that it forged in its own pipe.
func lastLine(t *testing.T, said string) map[string]string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(said), "\n")
	got := map[string]string{}
	decode(t, lines[len(lines)-1], &got)
	return got
}

// state describes a file without its content.
type state struct {
	mode, uid, gid uint32
	flags          int
	pipe           int
	exclusive      int
	size           unix.Winsize
	termios        unix.Termios
	typed          int
}

func stateOf(t *testing.T, f *os.File) state {
	t.Helper()
	var st unix.Stat_t
	fd := int(f.Fd())
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	s := state{mode: st.Mode, uid: st.Uid, gid: st.Gid}
	s.flags, _ = unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	s.pipe, _ = unix.FcntlInt(f.Fd(), unix.F_GETPIPE_SZ, 0)
	if termios, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
		s.termios = *termios
		s.exclusive, _ = unix.IoctlGetInt(fd, unix.TIOCGEXCL)
		s.typed, _ = unix.IoctlGetInt(fd, unix.TIOCINQ)
		size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err != nil {
			t.Fatal(err)
		}
		s.size = *size
	}
	return s
}

// checkStreams checks that the streams are pipes, and that no other operation on them succeeded than those on a pipe.
func checkStreams(t *testing.T, got map[string]string) {
	t.Helper()
	for fd := range 3 {
		if kind := got[string(rune('0'+fd))]; kind != "pipe" && kind != "device 1:3" {
			t.Errorf("descriptor %d is a %s", fd, kind)
		}
	}
	harmless := []string{ // on the node's own pipe
		"set-user-id", "owner", "no append", "non-blocking", "signals", "lock", "pipe size", "write again", "truncate", "read again",
	}
	for what, became := range got {
		if _, act, ok := strings.Cut(what, " "); ok && became == "ok" && !slices.Contains(harmless, act) {
			t.Errorf("%s: %s", what, became)
		}
	}
}

// TestStreams checks that a command in a node does not get its caller's standard input, output and error themselves: it cannot
// change, reopen or read the caller's files.
func TestStreams(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		for how, args := range callers(t, w) {
			t.Run(how, func(t *testing.T) {
				for _, kind := range []string{"file", "append", "pipe", "socket", "terminal", "fifo", "null"} {
					t.Run(kind, func(t *testing.T) { abuse(t, w, kind, args) })
				}
			})
		}
	})
}

// abuse has the probe attack three streams of a kind.
func abuse(t *testing.T, w *world, kind string, args []string) {
	in, out, said := streamsOf(t, kind)
	before := []state{stateOf(t, in), stateOf(t, out)}
	cmd := w.Command(append(slices.Clone(args), "streams")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: kind == "terminal"}
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, said())
	}
	after := []state{stateOf(t, in), stateOf(t, out)}
	for i, what := range []string{"input", "output"} {
		if before[i] != after[i] {
			t.Errorf("the caller's %s was\n%+v, and is\n%+v", what, before[i], after[i])
		}
	}
	text := said()
	if kind == "null" {
		return
	}
	checkStreams(t, lastLine(t, text))
	if kind == "append" && !strings.HasPrefix(text, "kept\n") {
		t.Errorf("what was in the file is gone: %q", text[:min(len(text), 40)])
	}
	// The rest of the caller's input is still there, and nothing else.
	if rest := waiting(in); strings.Contains(rest, "forged") {
		t.Errorf("the caller's next line is %q", rest)
	}
}

// waiting reads what a file has without blocking.
func waiting(f *os.File) string {
	var all []byte
	for b := make([]byte, 1<<16); ; {
		now := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(now, 0); err != nil || n == 0 {
			return string(all)
		}
		n, err := unix.Read(int(f.Fd()), b)
		if err != nil || n <= 0 {
			return string(all)
		}
		all = append(all, b[:n]...)
	}
}

// streamsOf makes an input and an output of a kind. said returns the output. Reading the input never blocks.
func streamsOf(t *testing.T, kind string) (in, out *os.File, said func() string) {
	t.Helper()
	open := func(name string, flags int) *os.File {
		f, err := os.OpenFile(name, flags, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	dir := t.TempDir()
	list, file := filepath.Join(dir, "list"), filepath.Join(dir, "out")
	err := errors.Join(os.WriteFile(list, []byte("one\ntwo\n"), 0o644), os.WriteFile(file, []byte("kept\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	read := func(f *os.File) func() string {
		return func() string { return waiting(f) }
	}
	switch kind {
	case "null":
		null := open(os.DevNull, os.O_RDWR)
		return null, null, func() string { return "" }
	case "file", "append":
		flags := os.O_WRONLY
		if kind == "append" {
			flags |= os.O_APPEND
		}
		return open(list, os.O_RDONLY), open(file, flags), func() string { b, _ := os.ReadFile(file); return string(b) }
	case "terminal":
		tty, master := testkit.Terminal(t)
		return tty, tty, read(master)
	case "socket":
		var ends [2][2]*os.File
		for i := range ends {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			ends[i] = [2]*os.File{os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket")}
			t.Cleanup(func() { ends[i][0].Close(); ends[i][1].Close() })
		}
		return ends[0][0], ends[1][0], read(ends[1][1])
	case "fifo":
		var all [2]*os.File
		for i, name := range []string{"fifo-in", "fifo-out"} {
			path := filepath.Join(dir, name)
			if err := unix.Mkfifo(path, 0o644); err != nil {
				t.Fatal(err)
			}
			all[i] = open(path, os.O_RDWR|unix.O_NONBLOCK)
		}
		return all[0], all[1], read(all[1])
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range []*os.File{inR, inW, outR, outW} {
			f.Close()
		}
	})
	if _, err := io.WriteString(inW, "one\n"); err != nil {
		t.Fatal(err)
	}
	return inR, outW, read(outR)
}

// TestFolderAsInput checks that a host folder as standard stream is refused and nothing is started.
func TestFolderAsInput(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		all := callers(t, w)
		for _, how := range slices.Sorted(maps.Keys(all)) {
			dir, err := os.Open("/")
			if err != nil {
				t.Fatal(err)
			}
			cmd := w.Command(append(slices.Clone(all[how]), "find", "/proc/self/fd/0", "etc")...)
			cmd.Stdin = dir
			stdout, stderr, code := env.Try(cmd)
			dir.Close()
			if code != 125 || stdout != "" || !strings.Contains(stderr, "standard input is a folder") {
				t.Errorf("%s: exit code %d: %s%s", how, code, stdout, stderr)
			}
		}
	})
}

// TestNextCommandsInput checks that a command in a node cannot write to the input from which its caller's shell reads, nor consume
// lines that it was not given.
func TestNextCommandsInput(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		for how, args := range callers(t, w) {
			cmd := w.Command(append(slices.Clone(args), "streams")...)
			script := `printf 'a\nb\n' | while read -r line; do echo "line $line" >&2; "$0" "$@" >/dev/null; done`
			cmd.Args = append([]string{"sh", "-c", script, cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
			_, stderr, code := env.Try(cmd)
			if code != 0 || strings.Contains(stderr, "line forged") || !strings.HasPrefix(stderr, "line a\n") {
				t.Errorf("%s: exit code %d: %s", how, code, stderr)
			}
		}
	})
}
