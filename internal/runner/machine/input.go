package machine

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
)

// input is the standard input of a command, as the monitor got it. What is in a pipe is sent to the guest by tee(2), and taken out of
// it only when the command has read it: the rest is the caller's.
type input struct {
	f       *os.File
	waits   bool   // Go's poller waits for it: it is not blocking
	scratch [2]int // a pipe; -1 where what is sent is taken at once
	once    sync.Once
}

func newInput(f *os.File) *input {
	i := &input{f: f, waits: f.SetReadDeadline(time.Time{}) == nil, scratch: [2]int{-1, -1}}
	if info, err := f.Stat(); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		if unix.Pipe2(i.scratch[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
			i.scratch = [2]int{-1, -1}
		}
	}
	return i
}

func (i *input) peeks() bool { return i.scratch[0] >= 0 }

// next waits for what comes next and copies it to b. With peeks, all that it gave before must have been taken.
func (i *input) next(b []byte) (n int, err error) {
	if !i.peeks() {
		return i.f.Read(b)
	}
	raw, err := i.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var moved int64
	tee := func(fd uintptr) (ready bool) {
		for {
			moved, err = unix.Tee(int(fd), i.scratch[1], len(b), unix.SPLICE_F_NONBLOCK)
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	}
	var ended error
	if i.waits {
		ended = raw.Read(tee)
	} else {
		ended = raw.Control(func(fd uintptr) {
			for !tee(fd) {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			}
		})
	}
	if err = errors.Join(ended, err); err != nil {
		return 0, err
	}
	if moved == 0 {
		return 0, io.EOF
	}
	return unix.Read(i.scratch[0], b[:moved])
}

// take takes n bytes that next gave out of the pipe. It does not wait, even where another process took them.
func (i *input) take(n int) {
	if !i.peeks() {
		return
	}
	raw, err := i.f.SyscallConn()
	if err != nil {
		return
	}
	waste := make([]byte, min(n, wire.Piece))
	_ = raw.Control(func(fd uintptr) {
		for n > 0 {
			moved, err := unix.Splice(int(fd), nil, i.scratch[1], nil, min(n, len(waste)), unix.SPLICE_F_NONBLOCK)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || moved == 0 {
				return
			}
			n -= int(moved)
			for moved > 0 {
				got, err := unix.Read(i.scratch[0], waste[:moved])
				if err != nil && !errors.Is(err, unix.EINTR) {
					return
				}
				moved -= int64(max(got, 0))
			}
		}
	})
}

// end ends a wait in next.
func (i *input) end() {
	if i.waits {
		_ = i.f.SetReadDeadline(time.Unix(1, 0))
	}
}

// close is called when nothing calls next or take any more.
func (i *input) close() {
	i.once.Do(func() {
		closeUnlessOwn(i.f)
		if i.peeks() {
			unix.Close(i.scratch[0])
			unix.Close(i.scratch[1])
		}
	})
}
