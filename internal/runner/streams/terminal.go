package streams

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is the host's end of the terminal of a command in a node. The runtime makes the terminal inside the node and
// sends its master through a socket.
type Terminal struct {
	listener *net.UnixListener
	master   *os.File
	fd       int // the descriptor of master; File.Fd would make it blocking
	restore  func()
	keys     *input
	output   sync.WaitGroup
	err      error // why output ended early; read it after output.Wait
}

// ListenTerminal opens the socket at path, which must be in a folder that only root can change.
func ListenTerminal(path string) (*Terminal, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("open the terminal's socket: %w", err)
	}
	return &Terminal{listener: l, restore: func() {}}, nil
}

// Attach receives the terminal from the runtime, and connects in and out to it until the node closes it. If in is a
// terminal, Attach puts it into raw mode, and the node's terminal follows its size.
func (t *Terminal) Attach(in, out *os.File) error {
	if err := t.accept(); err != nil {
		return err
	}
	if isTerminal(int(in.Fd())) {
		if err := t.takeOver(in); err != nil {
			t.master.Close()
			return err
		}
	}
	keys, err := typeInto(t.master, t.fd, in)
	if err != nil {
		t.master.Close()
		return err
	}
	t.keys = keys
	t.output.Go(func() { t.err = t.show(int(out.Fd())) })
	return nil
}

// show copies what the command writes. If out cannot be written, show hangs up the command's terminal and returns the
// error.
func (t *Terminal) show(out int) error {
	buf := make([]byte, atOnce)
	for {
		n, err := t.master.Read(buf)
		if werr := writeAll(out, buf[:n]); werr != nil {
			t.master.Close()
			return werr
		}
		if err != nil {
			return nil //nolint:nilerr // EIO is how a master says that nobody has the terminal open any more
		}
	}
}

// arrives is how long to wait for the runtime to connect. After create it has connected already; after exec it may
// still have to start.
const arrives = time.Minute

// accept receives the master.
func (t *Terminal) accept() error {
	_ = t.listener.SetDeadline(time.Now().Add(arrives))
	c, err := t.listener.AcceptUnix()
	if err != nil {
		return fmt.Errorf("wait for the node's terminal: %w", err)
	}
	defer c.Close()
	name, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, n, _, _, err := c.ReadMsgUnix(name, rights)
	if err != nil {
		return fmt.Errorf("receive the node's terminal: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(msgs) != 1 {
		return fmt.Errorf("receive the node's terminal: no file in the message: %w", err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return fmt.Errorf("receive the node's terminal: no file in the message: %w", err)
	}
	unix.CloseOnExec(fds[0])
	// Non-blocking, so that Close ends a read.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return fmt.Errorf("receive the node's terminal: %w", err)
	}
	t.fd, t.master = fds[0], os.NewFile(uintptr(fds[0]), "terminal")
	return nil
}

// takeOver puts the user's terminal into raw mode, and copies its size now and at every change.
func (t *Terminal) takeOver(in *os.File) error {
	fd := int(in.Fd())
	old, err := makeRaw(fd)
	if err != nil {
		return fmt.Errorf("put the terminal into raw mode: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	resize := func() {
		if ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
			_ = unix.IoctlSetWinsize(t.fd, unix.TIOCSWINSZ, ws)
		}
	}
	resize()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-resized:
				resize()
			}
		}
	}()
	t.restore = func() {
		signal.Stop(resized)
		cancel()
		_ = unix.IoctlSetTermios(fd, unix.TCSETSF, old)
	}
	return nil
}

// makeRaw does what cfmakeraw(3) does and returns the previous mode.
func makeRaw(fd int) (*unix.Termios, error) {
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	raw := *old
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	return old, unix.IoctlSetTermios(fd, unix.TCSETS, &raw)
}

// Drain waits until everything that the command wrote is written out, and restores the mode of the user's terminal. The
// error says why the output could not be written.
func (t *Terminal) Drain() error {
	t.output.Wait()
	if t.keys != nil {
		_ = t.keys.close()
		t.keys = nil
	}
	t.restore()
	t.restore = func() {}
	if t.err == nil || errors.Is(t.err, unix.EPIPE) {
		return nil
	}
	return fmt.Errorf("write what the command shows: %w", t.err)
}

// Abandon ends a wait for the terminal.
func (t *Terminal) Abandon() { t.listener.Close() }

// Close restores the mode of the user's terminal and removes the socket.
func (t *Terminal) Close() error {
	if t.keys != nil {
		_ = t.keys.close()
	}
	t.restore()
	t.restore = func() {}
	err := t.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	if t.master != nil {
		_ = t.master.Close() // show may have closed it
	}
	return err
}
