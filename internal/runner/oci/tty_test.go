package oci

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/runner/streams"
	"berth/test/testkit"
)

// TestExecTerminal checks that exec -t gives the command a terminal of the node, with the size of the user's terminal.
func TestExecTerminal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r Runtime) {
		n := newNode(t, r, nil)
		n.up(t)
		tty, master := testkit.Terminal(t)
		testkit.Resize(t, tty, 33, 77)
		// runc gives the terminal its size a moment after the command has started
		cmd := n.execCmd(t, "sh", "-c", "tty; for i in 1 2 3 4 5 6 7 8 9; do stty size 2>/dev/null | grep -q '33 77' && break; sleep 0.2; done; stty size; exit 5")
		cmd.Env = append(cmd.Env, "BERTH_TEST_TTY=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		tty.Close()
		var said strings.Builder
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			said.Write(b[:n])
			if err != nil {
				break // EIO: closed by all
			}
		}
		_ = cmd.Wait()
		got := strings.ReplaceAll(said.String(), "\r", "")
		if !strings.Contains(got, "/dev/pts/") || !strings.Contains(got, "33 77") || cmd.ProcessState.ExitCode() != 5 {
			t.Errorf("exit code %d, said %q", cmd.ProcessState.ExitCode(), got)
		}
	})
}

// TestTerminalSize checks that the node's terminal gets the size of the user's, and that the mode of the user's terminal is
// restored.
func TestTerminalSize(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r Runtime) {
		tty, _ := testkit.Terminal(t)
		testkit.Resize(t, tty, 33, 77)
		before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		n := newNode(t, r, func(in *runner.Spec) {
			in.Terminal = true
			in.Args = []string{"/bin/sh", "-c", `until [ "$(stty size)" = "33 77" ]; do sleep 0.02; done`}
		})
		n.create.Launch.Stdout, n.create.Launch.Stderr = nil, nil
		socket := filepath.Join(t.TempDir(), "tty")
		term, err := streams.ListenTerminal(socket)
		if err != nil {
			t.Fatal(err)
		}
		defer term.Close()
		n.create.Launch.ConsoleSocket = socket
		n.up(t)
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		if err := term.Attach(tty, null); err != nil {
			t.Fatal(err)
		}
		n.ended(t)
		if err := term.Drain(); err != nil {
			t.Error(err)
		}
		after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		if err != nil || *after != *before {
			t.Errorf("the terminal's mode was not given back: %v\n%v\n%v", err, before, after)
		}
	})
}

// TestOwnersStay checks that the files that a node gets as stdin, stdout and stderr, and the host's /dev/null, keep their
// owners.
func TestOwnersStay(t *testing.T) {
	t.Parallel()
	eachRuntime(t, func(t *testing.T, r Runtime) {
		tty, _ := testkit.Terminal(t)
		file, err := os.Create(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		for _, f := range []*os.File{tty, file, null, nil} {
			n := newNode(t, r, func(in *runner.Spec) { in.Args = []string{"/bin/true"} })
			n.create.Launch.Stdin, n.create.Launch.Stdout, n.create.Launch.Stderr = f, f, f
			if f == nil {
				f = null
			}
			before := ownerOf(t, f)
			n.up(t)
			n.ended(t)
			if after := ownerOf(t, f); after != before {
				t.Errorf("%s belonged to %v, and belongs to %v", f.Name(), before, after)
			}
		}
	})
}

func ownerOf(t *testing.T, f *os.File) [2]uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return [2]uint32{st.Uid, st.Gid}
}
