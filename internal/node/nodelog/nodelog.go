// Package nodelog moves what nodes write to their standard output and error from pipes into logs of bounded size, and
// reads the logs back.
//
// A node gets a FIFO and never sees its log. The node holds the FIFO open for reading and writing, so the FIFO always
// has a reader, and no write fails when the keeper (the process that empties the pipes) is killed. Writers then wait
// once the pipe is full. The next keeper opens the FIFO by its name and goes on. splice(2) takes data out of the pipe
// only when it is in the log, so killing the keeper loses nothing and repeats nothing.
package nodelog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// Half is the most that the newest part of a log holds, in bytes. The part before it is kept beside it and older
	// parts are dropped: a log takes at most 10 MiB, and its times 3 MiB.
	Half = 5 << 20
	// batch is how much is moved at once, in bytes: the usual capacity of a pipe.
	batch = 64 << 10
	// most is the largest capacity of a pipe, in bytes, unless root of the host has raised fs.pipe-max-size.
	most = 1 << 20
)

// Log is the log of one node.
type Log struct {
	Pipe string // the FIFO, in the node's live folder
	File string // the newest part
	Old  string // the part before it, in the same folder
}

// Make makes the FIFO and the log, and opens the FIFO for the node. The FIFO belongs to root: a process of the node
// that opens it again, as /dev/stdout, may only write to it. Only the descriptor that the node was given can read.
func (l Log) Make() (*os.File, error) {
	f, err := os.OpenFile(l.File, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	f.Close()
	err = unix.Mkfifo(l.Pipe, 0o622)
	if err == nil {
		err = os.Chmod(l.Pipe, 0o622) // the caller's umask must not matter
	}
	if err != nil {
		return nil, fmt.Errorf("make the pipe to the log: %w", err)
	}
	fd, err := unix.Open(l.Pipe, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the pipe to the log: %w", err)
	}
	return os.NewFile(uintptr(fd), l.Pipe), nil
}

// take moves at most a batch from the pipe to the log. If the pipe is empty, the error is EAGAIN while a process has it open
// for writing, else moved is 0 without an error. Data that cannot be written is dropped, because a full disk must not stop the
// node; lost says why.
func (l Log) take(pipe int) (moved int, lost, err error) {
	n, err := l.write(pipe)
	if n > 0 || errors.Is(err, unix.EAGAIN) || err == nil && !readable(pipe) {
		return n, nil, err
	}
	if err == nil {
		err = unix.ENODATA // a page that was spliced into the pipe has lost its file
	}
	lost = err
	n, err = drop(pipe)
	return n, lost, err
}

func (l Log) write(pipe int) (int, error) {
	f, at, err := l.open()
	if err != nil {
		return 0, err
	}
	defer func() { f.Close() }()
	if readable(pipe) && !l.stamp(f, at) {
		if err := l.turnOver(); err != nil {
			return 0, err
		}
		f.Close()
		if f, at, err = l.open(); err != nil {
			return 0, err
		}
		l.stamp(f, at)
	}
	return splice(pipe, int(f.Fd()), &at, int(min(batch, Half-at)))
}

// open opens the newest part of the log for writing at offset at. A full part becomes the old part first.
func (l Log) open() (f *os.File, at int64, err error) {
	f, err = os.OpenFile(l.File, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	switch {
	case err == nil:
		s, err := f.Stat()
		if err == nil && s.Size() < Half {
			return f, s.Size(), nil
		}
		f.Close()
		if err == nil {
			err = l.turnOver()
		}
		if err != nil {
			return nil, 0, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, 0, err
	default: // a keeper was killed after the rename; or the node was removed, and nothing is made in its folder
		if _, oldErr := os.Lstat(l.Old); oldErr != nil {
			return nil, 0, err
		}
	}
	f, err = os.OpenFile(l.File, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	return f, 0, err
}

// turnOver makes the newest part the old one. It removes the old part first: when a rename replaces a file, some file
// systems write the new one to the disk at once.
func (l Log) turnOver() error {
	if err := os.Remove(l.Old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(l.File, l.Old)
}

// drop discards a batch from the pipe.
func drop(pipe int) (int, error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	return splice(pipe, int(null.Fd()), nil, batch)
}

func splice(from, to int, at *int64, n int) (int, error) {
	for {
		moved, err := unix.Splice(from, nil, to, at, n, unix.SPLICE_F_NONBLOCK)
		if !errors.Is(err, unix.EINTR) {
			return int(max(moved, 0)), err
		}
	}
}

// readable reports whether the pipe holds data.
func readable(pipe int) bool {
	p := []unix.PollFd{{Fd: int32(pipe), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&unix.POLLIN != 0
}
