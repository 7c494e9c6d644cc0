package machine

import (
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
	"berth/test/testkit"
)

// guest starts the guest's program, as it runs beside an init system, and returns the host's end of its port.
func guest(t *testing.T) net.Conn {
	t.Helper()
	testkit.NeedsRoot(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testkit.Must(t, err)
	ours, theirs := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	line, err := net.FileConn(ours)
	testkit.Must(t, err)
	ours.Close()
	null, err := os.Open(os.DevNull) // it has ended, as the pipe to process 1 once that is the init system
	testkit.Must(t, err)
	cmd := exec.Command(filepath.Join(bench.Dir(), "berth-guest"), "agent")
	cmd.ExtraFiles = []*os.File{theirs, null}
	cmd.Stderr = os.Stderr
	asInGuest := make(chan os.Signal, 1)
	signal.Notify(asInGuest, unix.SIGINT, unix.SIGHUP) // whoever started this test may ignore them, and what it starts would, too
	testkit.Must(t, cmd.Start())
	signal.Stop(asInGuest)
	theirs.Close()
	null.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		line.Close()
	})
	testkit.Must(t, line.SetDeadline(time.Now().Add(testkit.Bound())))
	if f, err := wire.Read(line); err != nil || f.Kind != wire.Started {
		t.Fatalf("the agent says %q: %v", f.Kind, err)
	}
	return line
}

// said is what a command in the guest said, and how it ended.
type said struct {
	out, err string
	read     int // bytes of its input
	end      wire.End
}

// runs runs a command in the guest to its end. seen, which may be nil, is called with each frame.
func runs(t *testing.T, line net.Conn, channel uint32, c *wire.Command, input string, seen func(wire.Frame)) (s said) {
	t.Helper()
	to := wire.NewWriter(line)
	c.Env = []string{"PATH=/usr/bin:/bin"}
	testkit.Must(t, to.SendJSON(wire.Run, channel, c))
	if input != "" {
		testkit.Must(t, to.Send(wire.Input, channel, []byte(input)))
	}
	for {
		f, err := wire.Read(line)
		if err != nil {
			t.Fatalf("%v: %v", c.Args, err)
		}
		if seen != nil {
			seen(f)
		}
		switch f.Kind {
		case wire.Output, wire.Error:
			if f.Kind == wire.Output {
				s.out += string(f.Payload)
			} else {
				s.err += string(f.Payload)
			}
			testkit.Must(t, to.SendGrant(channel, f.Kind, len(f.Payload)))
		case wire.Grant:
			_, n, err := f.Granted()
			testkit.Must(t, err)
			s.read += n
		case wire.Ended:
			testkit.Must(t, f.Decode(&s.end))
			return s
		case wire.Failed:
			var failure wire.Failure
			testkit.Must(t, f.Decode(&failure))
			s.end.Code = failure.Code
			return s
		}
	}
}

// shell is a command of the shell.
func shell(script string) *wire.Command { return &wire.Command{Args: []string{"sh", "-c", script}} }

// TestAgentTerminal: a command on a terminal has it for its streams and its session, and it for a user.
func TestAgentTerminal(t *testing.T) {
	line := guest(t)
	to := wire.NewWriter(line)
	var channel uint32
	run := func(script string, seen func(shown string)) said {
		channel++
		c, shown := shell(script), ""
		c.UID, c.GID, c.Terminal = 65534, 65534, &wire.Size{Rows: 33, Columns: 77}
		return runs(t, line, channel, c, "", func(f wire.Frame) {
			if f.Kind == wire.Output || f.Kind == wire.Started {
				shown += string(f.Payload)
				seen(shown)
			}
		})
	}
	nothing := func(string) {}
	once := func(text string, do func()) func(string) {
		done := false
		return func(shown string) {
			if !done && strings.Contains(shown, text) {
				done = true
				do()
			}
		}
	}
	if s := run(`test -t 0 && test -t 1 && test -t 2 && test -O "$(tty)" && stty size >/dev/tty && echo errors >&2; exit 3`, nothing); s.out != "33 77\r\nerrors\r\n" || s.err != "" || s.end.Code != 3 {
		t.Errorf("a command on a terminal: %+v", s)
	}
	wide := once("ready", func() { testkit.Must(t, to.Send(wire.Resize, channel, []byte{0, 44, 1, 44})) })
	interrupt := once("44 300", func() { testkit.Must(t, to.Send(wire.Input, channel, []byte("\x03"))) })
	if s := run(`trap 'stty size' WINCH; trap 'echo stopped; exit 4' INT; echo ready; while :; do sleep 0.02; done`, func(shown string) { wide(shown); interrupt(shown) }); !strings.HasSuffix(s.out, "stopped\r\n") || s.end.Code != 4 {
		t.Errorf("a command whose terminal changes its size, and gets Ctrl-C: %+v", s)
	}
	word := once("ready", func() { testkit.Must(t, to.Send(wire.Input, channel, []byte("a word\n"))) })
	if s := run(`stty -echo; echo ready; read -r x; echo "got $x"`, word); s.out != "ready\r\ngot a word\r\n" || s.read != len("a word\n") {
		t.Errorf("a command that reads from a terminal: %+v", s)
	}
	if s := run("exec sleep 1000", once("", func() { testkit.Must(t, to.Send(wire.Input, channel, nil)) })); s.end.Signal != int(unix.SIGHUP) {
		t.Errorf("a command whose terminal hangs up: %+v", s.end)
	}
	if s := run("seq 10000", nothing); strings.Count(s.out, "\r\n") != 10000 || !strings.HasSuffix(s.out, "\r\n10000\r\n") {
		t.Errorf("of much that a command shows: %d bytes, the last are %q", len(s.out), s.out[max(0, len(s.out)-20):])
	}
	if s := run("trap '' HUP; while echo more; do :; done 2>/dev/null & exit 5", nothing); s.end.Code != 5 {
		t.Errorf("a command that leaves behind one that writes on: %+v", s.end)
	}
	testkit.Must(t, to.Send(wire.Resize, channel, []byte{0, 1})) // its command has ended
	if s := run("exit 6", nothing); s.end.Code != 6 {
		t.Errorf("after a size for nobody: %+v", s.end)
	}
}

// TestAgent: what the guest's program promises of commands, tried with the program on this kernel.
func TestAgent(t *testing.T) {
	line := guest(t)
	var channel uint32
	run := func(c *wire.Command, input string, seen func(wire.Frame)) said {
		channel++
		return runs(t, line, channel, c, input, seen)
	}
	if s := run(shell("test ! -e /proc/self/fd/3 && test ! -e /proc/self/fd/4"), "", nil); s.end.Code != 0 {
		t.Error("a command inherits the agent's port")
	}
	if s := run(shell("dd bs=11 count=1 2>/dev/null; exit 3"), "read by it, not read", nil); s.out != "read by it," || s.read != 11 || s.end.Code != 3 {
		t.Errorf("of its input a command reads some: %+v", s)
	}
	if s := run(shell("exec <&-; exit 4"), "not read", nil); s.read != 0 || s.end.Code != 4 {
		t.Errorf("a command closes its input: %+v", s)
	}
	one := shell("echo a; echo b >&2; echo c; echo d >&2")
	one.OneOutput = true
	if s := run(one, "", nil); s.out != "a\nb\nc\nd\n" || s.err != "" {
		t.Errorf("of one output: %+v", s)
	}
	if s := run(shell("echo a; echo b >&2"), "", nil); s.out != "a\n" || s.err != "b\n" {
		t.Errorf("of two outputs: %+v", s)
	}
	if s := run(shell("yes & exit 5"), "", nil); s.end.Code != 5 {
		t.Errorf("a command that leaves behind one that writes on: %+v", s.end)
	}
	s := run(&wire.Command{Args: []string{"yes"}}, "", func(f wire.Frame) {
		if f.Kind == wire.Output {
			testkit.Must(t, wire.NewWriter(line).Send(wire.Closed, channel, []byte{byte(wire.Output)}))
		}
	})
	if s.end.Signal != int(unix.SIGPIPE) {
		t.Errorf("a command whose output nobody reads: %+v", s.end)
	}
	if s := run(&wire.Command{Args: []string{"true"}, Cwd: "/no/such"}, "", nil); s.end.Code != 126 {
		t.Errorf("no such folder: exit code %d", s.end.Code)
	}
	// The kernel ignores SIGCHLD for a process 1 that does not expect it.
	testkit.Must(t, wire.NewWriter(line).Send(wire.Signal, 1, []byte{byte(unix.SIGCHLD)}))
	for {
		f, err := wire.Read(line)
		testkit.Must(t, err)
		if f.Kind != wire.Heard {
			continue
		}
		if f.Channel != 1 || f.Payload[0] != 0 {
			t.Errorf("the signal for a command that has ended: %+v", f)
		}
		return
	}
}
