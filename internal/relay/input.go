package relay

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// page is the least that a pipe holds: one buffer.
const page = 4096

// input copies what a command reads from a file of its caller's.
//
// It takes no more from the caller than the command has read: "while read NODE; do berth exec $NODE -- hostname; done"
// must not lose the rest of its list to the first command. A file's place is set back at the end. What a pipe or a stream
// socket holds is looked at without taking it, given to the command through a pipe that holds one buffer, and taken once
// the command has read that. A terminal can only be read: at most one line is taken ahead.
type input struct {
	from   int
	kind   kind
	to     *os.File // Berth's end of the pipe, or a terminal's master
	fd     int      // of to
	master bool     // to is a terminal's master: it stays open, and takes all there is
	source source

	ended chan struct{} // closed when the command has ended
	wake  int           // an eventfd: wakes who waits for from
	once  sync.Once
	done  chan struct{}
	err   error // read it after done
}

// source is one way to read a file of the caller's.
type source interface {
	// peek reads what drop was not told of yet. It does not wait: its error is EAGAIN where there is nothing yet, and
	// errBackground where a terminal is somebody else's to read now.
	peek(b []byte) (int, error)
	// drop says how much of that the pipe was given, and how much is unread in the pipe now.
	drop(gave, unread int)
	// close says how much the command left unread at its end.
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

// typeInto copies what is typed to a terminal's master.
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

// finish tells the command that there is no more. How much of a file it has not read is known when it has ended.
func (in *input) finish() {
	if in.master {
		return
	}
	if in.kind != seekable {
		in.to.Close()
		in.source.close(0)
		return
	}
	pipe, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", in.fd)) // its reading end: the command does not see this one
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

// copy copies until the caller's file ends, or the command does, or nobody can read the pipe any more.
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

// give writes to the pipe and, but for a file, waits until it was read. It returns how much it wrote, and whether to go on.
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

// taken waits until the pipe has room again: as it holds one buffer, that is when the command has read it. It is false
// when the command has ended or closed its input.
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

// pause waits for this process's turn to read the terminal. The kernel tells a process that it is continued, not that its
// job was moved to the foreground: hence the second.
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
		default: // it may be in read(2) for ever, where somebody else was faster; there is nothing to give back
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
