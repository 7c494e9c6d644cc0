package guest

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// past is a deadline that ends a wait at once.
var past = time.Unix(1, 0)

// stdin is Berth's end of a command's standard input: a pipe, or the master of its terminal.
type stdin interface {
	io.WriteCloser
	SetWriteDeadline(t time.Time) error
}

// input is Berth's end of the pipe from which a command reads. The pipe holds one buffer, so that Write knows what was read: what the
// command leaves unread is the host's to give back to its caller.
type input struct{ *os.File }

// newInput returns the command's end and Berth's.
func newInput() (theirs *os.File, ours input, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, input{}, err
	}
	ours = input{w}
	ours.control(func(fd int) { _, err = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, os.Getpagesize()) })
	if err != nil {
		r.Close()
		w.Close()
	}
	return r, ours, err
}

func (p input) control(f func(fd int)) { control(p.File, f) }

// control calls f with a file's descriptor, unless that is closed; File.Fd would make it blocking.
func control(of *os.File, f func(fd int)) {
	if raw, err := of.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// Write implements io.Writer. It returns when the command has read all of b, or with how much of it the command has read.
func (p input) Write(b []byte) (read int, err error) {
	for len(b) > 0 {
		n, err := p.File.Write(b[:min(len(b), os.Getpagesize())])
		if err == nil {
			err = p.taken()
		}
		if err != nil {
			p.control(func(fd int) { n -= unread(fd) })
			return read + max(n, 0), err
		}
		b, read = b[n:], read+n
	}
	return read, nil
}

// taken waits until the pipe is writable again, which is when its one buffer has been read.
func (p input) taken() error {
	raw, err := p.SyscallConn()
	if err != nil {
		return err
	}
	gone := false
	err = raw.Write(func(fd uintptr) bool {
		now := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if _, err := unix.Poll(now, 0); err != nil {
			return false
		}
		gone = now[0].Revents&unix.POLLERR != 0
		return now[0].Revents != 0
	})
	if gone {
		return unix.EPIPE
	}
	return err
}

// unread returns how many bytes are in a pipe (TIOCINQ is FIONREAD).
func unread(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}
