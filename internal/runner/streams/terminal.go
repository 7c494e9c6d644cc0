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
// sends its master through a socket. A machine's is carried there (Remote).
type Terminal struct {
	listener *net.UnixListener // nil: nothing is received
	master   *os.File
	fd       int      // the descriptor of master; File.Fd would make it blocking
	sizes    *os.File // takes the sizes of a terminal in a machine; nil: the master does
	restore  func()
	takeKeys func() // gives the command the keys that send signals; nil: it has them
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
	if err := t.Begin(in, out); err != nil {
		return err
	}
	t.TakeKeys()
	return nil
}

// Begin does what Attach does while the command has not started yet, which may take minutes. Ctrl-C and Ctrl-\ on in send their signals to
// this process until TakeKeys.
func (t *Terminal) Begin(in, out *os.File) error {
	if t.master == nil {
		if err := t.accept(); err != nil {
			return err
		}
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
	to := int(out.Fd()) // now: the caller may close out once Close has returned
	t.output.Go(func() { t.err = t.show(to) })
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
			return nil //nolint:nilerr // EIO is how a master says that nobody has the terminal open any more; a machine's ends
		}
	}
}

// arrives is how long to wait for the runtime to connect. After create it has connected already; after exec it may
// still have to start.
const arrives = time.Minute

// accept receives the master, or the line to a machine's terminal and what takes its sizes.
func (t *Terminal) accept() error {
	_ = t.listener.SetDeadline(time.Now().Add(arrives))
	c, err := t.listener.AcceptUnix()
	if err != nil {
		return fmt.Errorf("wait for the node's terminal: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	fds, err := receive(c)
	if err != nil {
		return fmt.Errorf("receive the node's terminal: %w", err)
	}
	t.use(fds...)
	return nil
}

// receive receives one descriptor or two, and makes them non-blocking, so that Close ends a read. The net package has asked the kernel
// that no program inherits them (MSG_CMSG_CLOEXEC).
func receive(c *net.UnixConn) (fds []int, err error) {
	name, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(2*4))
	_, n, flags, _, err := c.ReadMsgUnix(name, rights)
	if err != nil {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		more, err := unix.ParseUnixRights(&m)
		fds = append(fds, more...)
		if err != nil {
			return closed(fds, err)
		}
	}
	if len(fds) == 0 || flags&unix.MSG_CTRUNC != 0 {
		return closed(fds, errors.New("the message must have one file or two"))
	}
	for _, fd := range fds {
		if err := unix.SetNonblock(fd, true); err != nil {
			return closed(fds, err)
		}
	}
	return fds, nil
}

// closed closes descriptors, and returns why.
func closed(fds []int, why error) ([]int, error) {
	for _, fd := range fds {
		unix.Close(fd)
	}
	return nil, why
}

// use takes the master, or the line to a machine's terminal and what takes its sizes.
func (t *Terminal) use(fds ...int) {
	t.fd, t.master = fds[0], os.NewFile(uintptr(fds[0]), "terminal")
	if len(fds) > 1 {
		t.sizes = os.NewFile(uintptr(fds[1]), "sizes")
	}
}

// resize gives the node's terminal the size of the user's.
func (t *Terminal) resize(size *unix.Winsize) {
	if t.sizes != nil {
		_, _ = t.sizes.Write(AppendSize(nil, size.Row, size.Col))
		return
	}
	if raw, err := t.master.SyscallConn(); err == nil { // not by t.fd: after Close it may be the number of another file
		_ = raw.Control(func(fd uintptr) { _ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	}
}

// takeOver puts the user's terminal into raw mode, but for the keys that send signals, and copies its size now and at every change.
func (t *Terminal) takeOver(in *os.File) error {
	fd := int(in.Fd())
	old, raw, err := makeRaw(fd)
	if err != nil {
		return fmt.Errorf("put the terminal into raw mode: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	resize := func() {
		if ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
			t.resize(ws)
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
	t.takeKeys = func() {
		raw.Lflag &^= unix.ISIG
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, raw)
	}
	t.restore = func() {
		signal.Stop(resized)
		cancel()
		_ = unix.IoctlSetTermios(fd, unix.TCSETSF, old)
	}
	return nil
}

// makeRaw does what cfmakeraw(3) does, and returns the modes before and after. Keys still send signals, but Ctrl-Z: a program that stops
// leaves the terminal in this mode.
func makeRaw(fd int) (old, raw *unix.Termios, err error) {
	if old, err = unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
		return nil, nil, err
	}
	mode := *old
	raw = &mode
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	raw.Cc[unix.VSUSP] = 0 // no key: _POSIX_VDISABLE of Linux
	return old, raw, unix.IoctlSetTermios(fd, unix.TCSETS, raw)
}

// TakeKeys gives the command, which runs now, the keys that send signals. After Drain and Close it does nothing.
func (t *Terminal) TakeKeys() {
	if t.takeKeys != nil {
		t.takeKeys()
		t.takeKeys = nil
	}
}

// Drain waits until everything that the command wrote is written out, and restores the mode of the user's terminal. The
// error says why the output could not be written.
func (t *Terminal) Drain() error {
	t.output.Wait()
	t.release()
	if t.err == nil || errors.Is(t.err, unix.EPIPE) {
		return nil
	}
	return fmt.Errorf("write what the command shows: %w", t.err)
}

// release lets go of the user's terminal, and gives its mode back. A second call does nothing.
func (t *Terminal) release() {
	if t.keys != nil {
		_ = t.keys.close()
		t.keys = nil
	}
	t.takeKeys = nil
	t.restore()
	t.restore = func() {}
}

// Abandon ends a wait for the terminal.
func (t *Terminal) Abandon() {
	if t.listener != nil {
		t.listener.Close()
	}
}

// Close restores the mode of the user's terminal and removes the socket.
func (t *Terminal) Close() error {
	t.release()
	if t.sizes != nil {
		_ = t.sizes.Close()
	}
	if t.master != nil {
		_ = t.master.Close() // show may have closed it
	}
	if t.listener == nil {
		return nil
	}
	err := t.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}
