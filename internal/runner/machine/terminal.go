package machine

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
	"berth/internal/runner/streams"
)

// terminalEnv is what the environment of a command on a terminal has, if nobody says otherwise.
var terminalEnv = []string{"TERM=xterm"}

// sizes has the sizes of a user's terminal, as they change: streams.Remote.Sizes. It does not block.
type sizes struct{ f *os.File }

// now returns the last size that has come. It does not wait.
func (s *sizes) now() *wire.Size {
	last := &wire.Size{}
	raw, err := s.f.SyscallConn()
	if err != nil {
		return last
	}
	_ = raw.Control(func(fd uintptr) {
		b := make([]byte, streams.SizeBytes)
		for {
			n, err := unix.Read(int(fd), b) // whole sizes are in the pipe: each is written at once
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n < len(b) {
				return
			}
			if size, err := (wire.Frame{Payload: b}).Size(); err == nil {
				*last = size
			}
		}
	})
	return last
}

// follow sends each size that comes, until the user's terminal or the command is gone.
func (s *sizes) follow(send func(size []byte) error) {
	b := make([]byte, streams.SizeBytes)
	for {
		if _, err := io.ReadFull(s.f, b); err != nil || send(b) != nil {
			return
		}
	}
}
