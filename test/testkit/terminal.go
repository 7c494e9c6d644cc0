package testkit

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal makes a terminal and returns both sides: the user's, and its master. Both are closed when the test ends.
func Terminal(t testing.TB) (tty, master *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	Must(t, err)
	Must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	Must(t, err)
	t.Cleanup(func() { tty.Close() })
	Must(t, tty.Chmod(0o600))
	return tty, master
}

// Resize gives a terminal a size.
func Resize(t testing.TB, tty *os.File, rows, columns uint16) {
	t.Helper()
	Must(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
}

// Screen collects what appears on a terminal.
type Screen struct {
	t    testing.TB
	all  strings.Builder
	came chan string
}

// Watch reads a terminal's master.
func Watch(t testing.TB, master *os.File) *Screen {
	s := &Screen{t: t, came: make(chan string, 64)}
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

// Shows waits until a text has appeared on the screen.
func (s *Screen) Shows(text string) {
	s.t.Helper()
	for late := time.After(Bound()); !strings.Contains(s.all.String(), text); {
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
