package foreground

import (
	"context"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/test/testkit"
)

// slow is a machine that takes its time to start a command.
type slow struct {
	runner.Holder
	t   *testing.T
	tty *os.File
}

// signals reports whether Ctrl-C on the user's terminal is a signal.
func (s slow) signals() bool {
	mode, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	testkit.Must(s.t, err)
	return mode.Lflag&unix.ISIG != 0
}

func (s slow) Exec(_ context.Context, c runner.Command) (runner.Child, error) {
	far, err := c.Terminal.Remote()
	testkit.Must(s.t, err)
	if !s.signals() {
		s.t.Error("while a command starts, Ctrl-C is no signal")
	}
	return started{s}, far.Close()
}

// started is the command that it has started.
type started struct{ slow }

func (started) Signal(syscall.Signal) error { return nil }

func (s started) Wait() (unix.WaitStatus, error) {
	if s.signals() {
		s.t.Error("while a command runs, Ctrl-C is not its own")
	}
	return 3 << 8, nil
}

// TestExecTerminal: while a machine starts a command, which may take a minute, Ctrl-C gives it up; then the key is the command's.
func TestExecTerminal(t *testing.T) {
	tty, _ := testkit.Terminal(t)
	s := slow{t: t, tty: tty}
	if code, err := ExecTerminal(t.Context(), s, runner.Command{}, tty, tty); code != 3 || err != nil {
		t.Errorf("exit code %d: %v", code, err)
	}
	if !s.signals() {
		t.Error("the mode of the user's terminal was not given back")
	}
}
