package streams

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// page is the least that a pipe can hold, in bytes: one buffer.
const page = 4096

// input copies what a command reads from a file of its caller.
//
// It takes no more from the caller than the command has read: "while read NODE; do berth exec $NODE -- hostname; done"
// must not lose the rest of its list to the first command. For a file, input sets the caller's offset at the end. It
// peeks at the content of a pipe or a stream socket, gives it to the command through a pipe that holds one buffer, and
// takes it from the caller once the command has read it. A terminal cannot be peeked at: at most one line is taken
// ahead.
type input struct {
	from   int
	kind   kind
	to     *os.File // Berth's end of the pipe, or a terminal's master
	fd     int      // the descriptor of to
	master bool     // to is a terminal's master: it stays open, and accepts everything
	source source

	ended chan struct{} // closed when the command has ended
	wake  int           // an eventfd: ends a wait for from
	once  sync.Once
	done  chan struct{}
	err   error // read it after done
}

// source is one way to read a file of the caller.
type source interface {
	// peek reads the bytes after those that drop was told of. It does not wait: its error is EAGAIN if there is nothing yet,
	// and errBackground if the terminal belongs to another job now.
	peek(b []byte) (int, error)
	// drop says how many of these bytes were written to the pipe, and how many are unread in the pipe now.
	drop(gave, unread int)
	// close says how many bytes the command left unread.
	close(unread int)
}

func openInput(f *os.File, k kind) (theirs *os.File, in *input, err error) {
	ends, fd, err := newPipe(1)
	if err != nil {
		return nil, nil, err
	}
	in = &input{from: int(f.Fd()), kind: k, to: ends[1], fd: fd, ended: make(chan struct{}), done: make(chan struct{})}
	if k != seekable {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, page)
	}
	if err == nil {
		in.source, err = sourceOf(in.from, k)
	}
	if err == nil {
		err = in.start()
	}
	if err != nil {
		ends[0].Close()
		ends[1].Close()
		return nil, nil, fmt.Errorf("relay standard input: %w", err)
	}
	return ends[0], in, nil
}

// typeInto copies what the user types to a terminal's master.
func typeInto(master *os.File, fd int, from *os.File) (*input, error) {
	in := &input{
		from: int(from.Fd()), kind: plain, to: master, fd: fd, master: true,
		source: openPlainSource(int(from.Fd())), ended: make(chan struct{}), done: make(chan struct{}),
	}
	return in, in.start()
}

func (in *input) start() (err error) {
	if in.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("make an event: %w", err)
	}
	go func() {
		defer close(in.done)
		in.err = in.copy()
		in.finish()
	}()
	return nil
}

// finish signals end of file to the command. For a file, it waits for the command's end to learn how much was not read.
func (in *input) finish() {
	if in.master {
		return
	}
	if in.kind != seekable {
		in.to.Close()
		in.source.close(0)
		return
	}
	pipe, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", in.fd)) // opens the reading end; the command does not get this one
	if err != nil {
		in.err = errors.Join(in.err, err)
	}
	in.to.Close()
	<-in.ended
	if err == nil {
		in.source.close(unread(int(pipe.Fd())))
		pipe.Close()
	}
}

// copy copies until the caller's file ends, the command ends, or the pipe has no reader.
func (in *input) copy() error {
	buf := make([]byte, atOnce)
	if in.kind == plain {
		buf = buf[:page]
	}
	for !in.over() {
		n, err := in.source.peek(buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if err := in.await(); err != nil {
				return err
			}
			continue
		case errors.Is(err, errBackground):
			in.pause()
			continue
		case err != nil:
			return err
		case n == 0: // end of file
			return nil
		}
		gave, ok := in.give(buf[:n])
		in.source.drop(gave, unread(in.fd))
		if !ok {
			return nil
		}
	}
	return nil
}

func (in *input) over() bool {
	select {
	case <-in.ended:
		return true
	default:
		return false
	}
}

// give writes b to the command and, if the command reads a pipe with one buffer, waits until b was read. gave is how
// much it wrote; ok is false if the copying must end.
func (in *input) give(b []byte) (gave int, ok bool) {
	if in.kind == seekable || in.master {
		n, err := in.to.Write(b)
		return n, err == nil
	}
	for len(b) > 0 {
		n, err := in.to.Write(b[:min(page, len(b))])
		gave += n
		if err != nil || !in.taken() {
			return gave, false
		}
		b = b[n:]
	}
	return gave, true
}

// taken waits until the pipe is writable again. The pipe holds one buffer, so the command has read it then. It returns
// false when the command has ended or closed its input.
func (in *input) taken() bool {
	raw, err := in.to.SyscallConn()
	if err != nil {
		return false
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
	return err == nil && !gone
}

// await waits until the caller's file can be read, or the command has ended.
func (in *input) await() error {
	return wait(-1, unix.PollFd{Fd: int32(in.from), Events: unix.POLLIN}, unix.PollFd{Fd: int32(in.wake), Events: unix.POLLIN})
}

// pause waits for this process's turn to read the terminal. The kernel signals that a process is continued, but not
// that its job was moved to the foreground; so pause also returns after a second.
func (in *input) pause() {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(continued)
	select {
	case <-in.ended:
	case <-continued:
	case <-time.After(time.Second):
	}
}

// close ends the copying.
func (in *input) close() error {
	in.once.Do(func() {
		close(in.ended)
		_, _ = unix.Write(in.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		_ = in.to.SetWriteDeadline(past)
	})
	if in.kind == plain {
		select {
		case <-in.done:
		default: // it may be in read(2) for ever, if another process took the input first; there is nothing to give back
			return nil
		}
	}
	<-in.done
	unix.Close(in.wake)
	if in.err != nil {
		return fmt.Errorf("read the command's standard input: %w", in.err)
	}
	return nil
}
