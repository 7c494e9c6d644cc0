package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// atOnce is how many bytes are copied at a time: the capacity of a pipe.
const atOnce = 64 << 10

// past is a deadline that ends a wait at once.
var past = time.Unix(1, 0)

// output copies what a command writes to a file of its caller.
//
// It does not splice: splice(2) would lend pages of the node to the caller, and it refuses files that are open for
// appending.
type output struct {
	name string
	from *os.File // Berth's end of the pipe
	fd   int      // the descriptor of from
	to   int
	done chan struct{}
	err  error // why it ended early; read it after done
}

func openOutput(to *os.File, name string) (theirs *os.File, o *output, err error) {
	ends, fd, err := newPipe(0)
	if err != nil {
		return nil, nil, err
	}
	o = &output{name: name, from: ends[0], fd: fd, to: int(to.Fd()), done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.err = o.copy()
		o.from.Close() // later writers get SIGPIPE
	}()
	return ends[1], o, nil
}

// copy copies until the last writer has closed the pipe. After close was called, it copies only what is in the pipe.
func (o *output) copy() error {
	buf := make([]byte, atOnce)
	for {
		n, err := o.from.Read(buf)
		if werr := writeAll(o.to, buf[:n]); werr != nil {
			return werr
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return o.rest(buf)
		}
		if err != nil {
			return nil //nolint:nilerr // end of file
		}
	}
}

// rest copies what is in the pipe now, and no more: a process that the command left behind may write for ever.
func (o *output) rest(buf []byte) error {
	for left := unread(o.fd); left > 0; {
		n, err := unix.Read(o.fd, buf[:min(left, len(buf))])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case n <= 0: // a process in the node took it
			return nil
		}
		left -= n
		if err := writeAll(o.to, buf[:n]); err != nil {
			return err
		}
	}
	return nil
}

func (o *output) close(ctx context.Context) error {
	_ = o.from.SetReadDeadline(past)
	select {
	case <-o.done:
	case <-ctx.Done():
		return fmt.Errorf("write the command's %s: interrupted before all of it was written", o.name)
	}
	if o.err == nil || errors.Is(o.err, unix.EPIPE) {
		return nil
	}
	return fmt.Errorf("write the command's %s: %w", o.name, o.err)
}

// writeAll writes to a file of the caller, which other processes may have made non-blocking. It does not use os.File:
// Go ends a program that gets EPIPE on standard output.
func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			if err := wait(-1, unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}); err != nil {
				return err
			}
		case err != nil:
			return err
		case n == 0:
			return io.ErrShortWrite
		default:
			b = b[n:]
		}
	}
	return nil
}

// wait waits until one of the files is ready, at most ms milliseconds. ms -1: for ever.
func wait(ms int, fds ...unix.PollFd) error {
	for {
		_, err := unix.Poll(fds, ms)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
