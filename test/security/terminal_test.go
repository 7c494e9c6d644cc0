package security

import (
	"io"
	"maps"
	"os"
	"slices"
	"syscall"
	"testing"

	"berth/test/testkit"
)

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
				tty, master := testkit.Terminal(t)
				testkit.Resize(t, tty, 33, 99)
				before := stateOf(t, tty)
				s := testkit.Watch(t, master)
				cmd := w.Command(withTerminal(all[how], "sh", "-c", script)...)
				cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				s.Shows("33 99\r\n")
				s.Shows("ready")
				testkit.Resize(t, tty, 44, 111)
				s.Shows("44 111\r\n")
				testkit.Resize(t, tty, 20, 70)
				s.Shows("20 70\r\n")
				if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 3 {
					t.Errorf("exit code %d", cmd.ProcessState.ExitCode())
				}
				testkit.Resize(t, tty, 33, 99)
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
				s.Shows(`"2 write again":`) // the probe came this far
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
