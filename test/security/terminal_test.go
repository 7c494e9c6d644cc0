package security

import (
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// screen collects what appears on a terminal.
type screen struct {
	t      *testing.T
	master *os.File
	all    strings.Builder
	came   chan string
}

func watch(t *testing.T, master *os.File) *screen {
	s := &screen{t: t, master: master, came: make(chan string, 64)}
	go func() {
		defer close(s.came)
		for b := make([]byte, 4096); ; {
			n, err := master.Read(b)
			if n > 0 {
				s.came <- string(b[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return s
}

// shows waits until a text appears on the screen.
func (s *screen) shows(text string) {
	s.t.Helper()
	for late := time.After(testkit.Bound()); !strings.Contains(s.all.String(), text); {
		select {
		case more, ok := <-s.came:
			if s.all.WriteString(more); !ok {
				s.t.Fatalf("the terminal is gone, and showed %q, not %q", s.all.String(), text)
			}
		case <-late:
			s.t.Fatalf("the terminal shows %q, not %q", s.all.String(), text)
		}
	}
}

func resize(t *testing.T, tty *os.File, rows, cols uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		t.Fatal(err)
	}
}

// withTerminal adds -t to a caller's arguments and replaces the command.
func withTerminal(args []string, command ...string) []string {
	dash := slices.Index(args, "--")
	all := append([]string{args[0], "-t"}, args[1:dash+1]...)
	return append(all, command...)
}

// TestOwnTerminal checks that with -t a command has the node's own terminal, which follows the size of the user's. Changes to it do
// not affect the user's terminal.
func TestOwnTerminal(t *testing.T) {
	// crun's exec gives the terminal its size when the command may run already, so the command waits for one.
	const script = `until [ "$(stty size)" != "0 0" ]; do sleep 0.02; done; stty size; stty -echo; trap 'stty size; [ $((n = n + 1)) -lt 2 ] || exit 3' WINCH; n=0; echo ready; while :; do sleep 0.02; done`
	eachRuntime(t, func(t *testing.T, w *world) {
		all := callers(t, w)
		for _, how := range slices.Sorted(maps.Keys(all)) {
			t.Run(how, func(t *testing.T) {
				tty, master := openPair(t)
				resize(t, tty, 33, 99)
				before := stateOf(t, tty)
				s := watch(t, master)
				cmd := w.Command(withTerminal(all[how], "sh", "-c", script)...)
				cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				s.shows("33 99\r\n")
				s.shows("ready")
				resize(t, tty, 44, 111)
				s.shows("44 111\r\n")
				resize(t, tty, 20, 70)
				s.shows("20 70\r\n")
				if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 3 {
					t.Errorf("exit code %d", cmd.ProcessState.ExitCode())
				}
				resize(t, tty, 33, 99)
				if after := stateOf(t, tty); after != before {
					t.Errorf("the user's terminal was\n%+v, and is\n%+v", before, after)
				}

				// The attacks on the command's streams.
				cmd = w.Command(append([]string{all[how][0], "-t"}, append(slices.Clone(all[how][1:]), "streams")...)...)
				cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
				if err := cmd.Run(); err != nil {
					t.Fatal(err)
				}
				s.shows(`"2 write again":`) // the probe came this far
				if after := stateOf(t, tty); after != before {
					t.Errorf("the user's terminal was\n%+v, and is\n%+v", before, after)
				}
			})
		}
	})
}

// TestKilledExec checks that the command of a killed berth exec lives on, with end of file on its input and without the caller's
// files.
func TestKilledExec(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "")
		r, typed, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer typed.Close()
		// The kernel closes the files of the killed one after the other: its input may end while its output is still read.
		cmd := w.Command("exec", name, "--", "sh", "-c", "echo ready; cat; trap '' PIPE; while echo more 2>/dev/null; do sleep 0.02; done; echo refused >/tmp/end; sleep 1000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = r
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 6)
		if _, err := io.ReadFull(out, line); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		w.OK(t, "exec", name, "--", "sh", "-c", "until grep -q refused /tmp/end; do sleep 0.02; done 2>/dev/null")
	})
}
