package streams

import (
	"errors"
	"os/signal"

	"golang.org/x/sys/unix"
)

func sourceOf(fd int, k kind) (source, error) {
	switch k {
	case seekable:
		at, err := unix.Seek(fd, 0, unix.SEEK_CUR)
		return &fileSource{fd: fd, at: at}, err
	case pipe:
		return openPipeSource(fd)
	case stream:
		return socketSource(fd), nil
	}
	return openPlainSource(fd), nil
}

// fileSource reads a file without moving the offset that the caller shares; close sets that offset.
type fileSource struct {
	fd int
	at int64 // offset up to which the command was given the file
}

func (s *fileSource) peek(b []byte) (int, error) { return unix.Pread(s.fd, b, s.at) }

func (s *fileSource) drop(gave, _ int) { s.at += int64(gave) }

func (s *fileSource) close(unread int) { _, _ = unix.Seek(s.fd, s.at-int64(unread), unix.SEEK_SET) }

// pipeSource reads the content of a pipe through a second pipe, by tee(2).
type pipeSource struct {
	fd      int
	scratch [2]int
}

func openPipeSource(fd int) (*pipeSource, error) {
	s := &pipeSource{fd: fd}
	return s, unix.Pipe2(s.scratch[:], unix.O_CLOEXEC|unix.O_NONBLOCK)
}

func (s *pipeSource) peek(b []byte) (int, error) {
	n, err := unix.Tee(s.fd, s.scratch[1], len(b), unix.SPLICE_F_NONBLOCK)
	if err != nil || n == 0 {
		return 0, err
	}
	return unix.Read(s.scratch[0], b[:n])
}

// drop takes bytes out of the pipe. It returns early if another reader took them.
func (s *pipeSource) drop(gave, unread int) {
	n := max(0, gave-unread)
	waste := make([]byte, min(n, atOnce))
	for n > 0 {
		moved, err := unix.Splice(s.fd, nil, s.scratch[1], nil, len(waste), unix.SPLICE_F_NONBLOCK)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || moved == 0 {
			return
		}
		for left := int(moved); left > 0; {
			got, err := unix.Read(s.scratch[0], waste[:min(left, len(waste))])
			if err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
			left -= max(got, 0)
		}
		n -= int(moved)
		waste = waste[:min(n, len(waste))]
	}
}

func (s *pipeSource) close(int) {
	unix.Close(s.scratch[0])
	unix.Close(s.scratch[1])
}

// socketSource peeks at what a stream socket has received.
type socketSource int

func (s socketSource) peek(b []byte) (int, error) {
	n, _, err := unix.Recvfrom(int(s), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n, err
}

func (s socketSource) drop(gave, unread int) {
	n := max(0, gave-unread)
	waste := make([]byte, min(n, atOnce))
	for n > 0 {
		got, _, err := unix.Recvfrom(int(s), waste[:min(n, len(waste))], unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || got == 0 {
			return
		}
		n -= got
	}
}

func (socketSource) close(int) {}

// errBackground says that the terminal belongs to another job: reading it would stop this process.
var errBackground = errors.New("the terminal is another job's")

// plainSource reads a terminal or another device.
type plainSource struct{ fd int }

func openPlainSource(fd int) plainSource {
	if isTerminal(fd) {
		signal.Ignore(unix.SIGTTIN) // a read that comes a moment too late then fails instead of stopping this process
	}
	return plainSource{fd}
}

func (s plainSource) peek(b []byte) (int, error) {
	now := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(now, 0); err != nil {
		return 0, err
	}
	if now[0].Revents == 0 {
		return 0, unix.EAGAIN
	}
	if s.background() {
		return 0, errBackground
	}
	n, err := unix.Read(s.fd, b)
	switch {
	case errors.Is(err, unix.EIO) && s.background():
		return 0, errBackground
	case errors.Is(err, unix.EIO) && isTerminal(s.fd): // hung up
		return 0, nil
	}
	return max(n, 0), err
}

func (plainSource) drop(int, int) {}

func (plainSource) close(int) {}

// background reports whether the file is this session's terminal and another job is in the foreground.
func (s plainSource) background() bool {
	job, err := unix.IoctlGetInt(s.fd, unix.TIOCGPGRP)
	return err == nil && job != unix.Getpgrp()
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}
