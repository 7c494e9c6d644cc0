package guest

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
)

// outputs are the pipes from a command's standard output and error, or the one from both, or its terminal.
type outputs struct {
	pipes  []*output
	copies sync.WaitGroup
}

type output struct {
	kind     wire.Kind
	from     *os.File
	terminal bool // from is a terminal's master
	to       *wire.Sender
}

// of returns the pipe of a stream; nil if there is none.
func (o *outputs) of(kind wire.Kind) *output {
	for _, p := range o.pipes {
		if p.kind == kind {
			return p
		}
	}
	return nil
}

func (o *outputs) close() {
	for _, p := range o.pipes {
		p.close()
	}
}

// close ends a pipe that nobody reads any more: who writes to it gets SIGPIPE.
func (p *output) close() {
	p.to.Close()
	p.from.Close()
}

// copy sends what the command writes to the host.
func (o *outputs) copy() {
	for _, p := range o.pipes {
		o.copies.Go(func() {
			defer p.close()
			b := make([]byte, wire.Piece)
			for {
				n, err := p.from.Read(b)
				if _, failed := p.to.Write(b[:n]); failed != nil {
					return
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					p.rest(b)
				}
				if err != nil {
					return
				}
			}
		})
	}
}

// mostHeld is more than the kernel holds of what was written to a terminal and not read yet, in bytes: 12 KiB, as of Linux 6.12
// (N_TTY_BUF_SIZE, and the limit of pty_common_install). It does not tell how much there is.
const mostHeld = 64 << 10

// rest sends what is in the pipe now, and no more: a process that the command left behind may write for ever.
func (p *output) rest(b []byte) {
	raw, err := p.from.SyscallConn()
	if err != nil {
		return
	}
	left := 0
	if p.terminal {
		left = mostHeld
	} else {
		_ = raw.Control(func(fd uintptr) { left = unread(int(fd)) })
	}
	for left > 0 {
		n := 0
		_ = raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), b[:min(left, len(b))]) })
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 { // another process took it, or the terminal holds no more
			return
		}
		if _, err := p.to.Write(b[:n]); err != nil {
			return
		}
		left -= n
	}
}

// drain waits until all that the command wrote before it ended is sent, however slow its reader is.
func (o *outputs) drain() {
	for _, p := range o.pipes {
		_ = p.from.SetReadDeadline(past)
	}
	o.copies.Wait()
}
