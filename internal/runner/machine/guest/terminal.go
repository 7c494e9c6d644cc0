package guest

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
)

// terminal is Berth's end of a command's terminal, its master. What it shows is read from another descriptor of the same.
type terminal struct{ *os.File }

func (t terminal) resize(s wire.Size) {
	control(t.File, func(fd int) {
		_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Columns})
	})
}

// connectTerminal makes a terminal for a command, which owns it: its streams, and what controls its session. theirs is as of connect.
func (c *command) connectTerminal(cmd *exec.Cmd, want *wire.Command) (theirs []*os.File, err error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("make a terminal: %w", err)
	}
	c.read(wire.Output, master, true)
	number, keys := 0, -1
	control(master, func(fd int) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return
		}
		if number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN); err != nil {
			return
		}
		keys, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("make a terminal: %w", err)
	}
	t := terminal{os.NewFile(uintptr(keys), "terminal")}
	c.stdin = t
	t.resize(*want.Terminal)
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the terminal: %w", err)
	}
	if err := tty.Chown(int(want.UID), -1); err != nil {
		return []*os.File{tty}, fmt.Errorf("give the command its terminal: %w", err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr.Setctty = tty, tty, tty, true // descriptor 0 controls the session
	return []*os.File{tty}, nil
}
