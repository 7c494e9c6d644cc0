package streams

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// listening is a Terminal to whose socket these files were sent in one message.
func listening(t *testing.T, fds ...int) *Terminal {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "tty")
	term, err := ListenTerminal(socket)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = term.Close() })
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	testkit.Must(t, err)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix([]byte{0}, rights, nil)
	testkit.Must(t, err)
	testkit.Must(t, c.Close())
	return term
}

// TestNoTerminal: a message that has no terminal is refused, and no file of it stays open.
func TestNoTerminal(t *testing.T) {
	folder, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_CLOEXEC, 0) // nobody can make it non-blocking
	testkit.Must(t, err)
	defer unix.Close(folder)
	for name, fds := range map[string][]int{
		"no file":               nil,
		"more files than two":   {2, 2, 2},
		"files of another kind": {folder, folder},
	} {
		term := listening(t, fds...)
		null := open(t, os.DevNull, os.O_RDWR)
		before := openFiles(t)
		err := term.Attach(null, null)
		if err == nil {
			t.Errorf("%s: attached", name)
			continue
		}
		t.Logf("%s: %v", name, err)
		if after := openFiles(t); !slices.Equal(after, before) {
			t.Errorf("%s: open are %v, and were %v", name, after, before)
		}
	}
}

// openFiles lists what this process has open, but for sockets and what Go's own poller has.
func openFiles(t *testing.T) (all []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	testkit.Must(t, err)
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && filepath.IsAbs(to) {
			all = append(all, to)
		}
	}
	slices.Sort(all)
	return all
}

// TestKeysOfSignals: until the command runs, Ctrl-C is the user's way to give it up.
func TestKeysOfSignals(t *testing.T) {
	tty, _ := testkit.Terminal(t)
	signals := func() bool {
		mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		testkit.Must(t, err)
		if mode.Lflag&unix.ECHO != 0 {
			t.Error("what is typed is shown twice")
		}
		return mode.Lflag&unix.ISIG != 0
	}
	term, far, err := OpenRemote()
	testkit.Must(t, err)
	testkit.Must(t, term.Begin(tty, open(t, os.DevNull, os.O_WRONLY)))
	if !signals() {
		t.Error("before the command runs, Ctrl-C sends no signal")
	}
	term.TakeKeys()
	if signals() {
		t.Error("when the command runs, Ctrl-C is not its own")
	}
	testkit.Must(t, far.Close())
	testkit.Must(t, term.Drain())
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	testkit.Must(t, err)
	term.TakeKeys()
	if after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS); err != nil || *after != *before {
		t.Errorf("after the end, the mode of the user's terminal changes: %v", err)
	}
	testkit.Must(t, term.Close())
}

// TestClosedTerminal: what comes after the end of a terminal's use (its size, one more Close) reaches no other file that has got one of
// its numbers.
func TestClosedTerminal(t *testing.T) {
	_, master := testkit.Terminal(t)
	another, _ := testkit.Terminal(t)
	testkit.Resize(t, another, 24, 80)
	typed, typist, err := os.Pipe()
	testkit.Must(t, err)
	testkit.Must(t, typist.Close())
	term := listening(t, int(master.Fd()))
	testkit.Must(t, term.Attach(typed, open(t, os.DevNull, os.O_WRONLY)))
	<-term.keys.done
	wake := term.keys.wake
	testkit.Must(t, term.Close())
	for _, number := range []int{term.fd, wake} {
		testkit.Must(t, unix.Dup3(int(another.Fd()), number, unix.O_CLOEXEC))
		defer unix.Close(number)
	}
	term.resize(&unix.Winsize{Row: 9, Col: 9})
	if size, err := unix.IoctlGetWinsize(int(another.Fd()), unix.TIOCGWINSZ); err != nil || size.Row != 24 {
		t.Errorf("another terminal has got the size %+v: %v", size, err)
	}
	testkit.Must(t, term.Drain())
	testkit.Must(t, term.Close())
	if _, err := unix.FcntlInt(uintptr(wake), unix.F_GETFD, 0); err != nil {
		t.Errorf("another file was closed: %v", err)
	}
}

// TestAbandoned: whoever waits for a terminal that does not come is told, and goes on.
func TestAbandoned(t *testing.T) {
	(&Terminal{}).Abandon() // without a wait
	term, err := ListenTerminal(filepath.Join(t.TempDir(), "s"))
	testkit.Must(t, err)
	null := open(t, os.DevNull, os.O_RDWR)
	ended := make(chan error, 1)
	go func() { ended <- term.Attach(null, null) }()
	term.Abandon()
	if err := <-ended; err == nil {
		t.Error("attached to a terminal that nobody sent")
	}
}

// TestPause: a job in the background that a terminal has input for waits until it is continued, or the command has ended.
func TestPause(t *testing.T) {
	in := &input{ended: make(chan struct{})}
	back, stop := make(chan struct{}), time.NewTicker(time.Millisecond)
	defer stop.Stop()
	go func() { in.pause(); close(back) }()
	for paused := true; paused; {
		select {
		case <-back:
			paused = false
		case <-stop.C:
			testkit.Must(t, unix.Kill(unix.Getpid(), unix.SIGCONT))
		}
	}
	close(in.ended)
	in.pause()
}
