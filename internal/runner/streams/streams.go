// Package streams gives a command in a node pipes, or a terminal, of its own in place of the files of its caller, and copies the
// data between the two.
//
// A descriptor is more than a way to read or write. A process that holds one can open the file behind it again with
// more rights, change its mode, clear O_APPEND, make it non-blocking for everybody who shares it, or resize and claim a
// terminal. Even a pipe can be opened again at its other end: a command could write into the list that its caller's
// loop reads. So no file of the caller is handed on, not even a pipe or a socket.
package streams

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// Streams are the standard streams of one command. An end is nil if the caller's file is a null device; the starter of
// the command then makes a null device of the node's own.
type Streams struct {
	In, Out, Err *os.File // the command's ends; Err is Out if both of the caller's lead to one place, to keep their order

	input   *input
	outputs []*output
}

// Open makes the pipes for the caller's files. The caller must call Close, also if the command never ran.
//
// The error is refuse.Invalid for a folder: a pipe cannot stand for one.
func Open(in, out, errs *os.File) (_ *Streams, err error) {
	names := []string{"standard input", "standard output", "standard error"}
	kinds := make([]kind, len(names))
	for i, f := range []*os.File{in, out, errs} {
		if kinds[i], err = kindOf(f, names[i]); err != nil {
			return nil, err
		}
	}
	s := &Streams{}
	defer func() {
		if err != nil {
			_ = s.Close(context.Background()) // nothing was written: Close does not wait
		}
	}()
	if kinds[0] != null {
		if s.In, s.input, err = openInput(in, kinds[0]); err != nil {
			return s, err
		}
	}
	if kinds[1] != null {
		if s.Out, err = s.openOutput(out, names[1]); err != nil {
			return s, err
		}
	}
	switch {
	case kinds[2] == null:
	case kinds[1] != null && onePlace(out, errs):
		s.Err = s.Out
	default:
		s.Err, err = s.openOutput(errs, names[2])
	}
	return s, err
}

func (s *Streams) openOutput(to *os.File, name string) (*os.File, error) {
	theirs, o, err := openOutput(to, name)
	if err == nil {
		s.outputs = append(s.outputs, o)
	}
	return theirs, err
}

// Files returns the command's ends, each once.
func (s *Streams) Files() []*os.File {
	var all []*os.File
	for _, f := range []*os.File{s.In, s.Out, s.Err} {
		if f != nil && !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}

// Started closes this process's copies of the command's ends, after the command was started or failed to start.
func (s *Streams) Started() {
	for _, f := range s.Files() {
		f.Close()
	}
	s.In, s.Out, s.Err = nil, nil, nil
}

// Close is called after the command's end. It waits until the command's output is written out, and leaves to the caller
// the input that the command did not read, as far as the kind of input allows it. Processes that the command left
// behind get SIGPIPE when they write.
//
// The error says which of the caller's files could not be read or written, or that ctx ended early. A reader who closed
// its end is no error: the command got SIGPIPE, as if it had written to that reader itself.
func (s *Streams) Close(ctx context.Context) error {
	s.Started()
	input, outputs := s.input, s.outputs
	s.input, s.outputs = nil, nil
	var errs []error
	if input != nil {
		errs = append(errs, input.close())
	}
	for _, o := range outputs {
		errs = append(errs, o.close(ctx))
	}
	return errors.Join(errs...)
}

// kind is how a file of the caller is read.
type kind int

const (
	null     kind = iota // a null device
	seekable             // a regular file or a disk: the caller's offset is set to where the command stopped reading
	pipe                 // can be read without taking, by tee(2)
	stream               // a stream socket: can be read without taking, by MSG_PEEK
	plain                // anything else: a read takes the data
)

// kindOf returns how a file is read, and refuses a file that cannot be relayed.
func kindOf(f *os.File, name string) (kind, error) {
	var st unix.Stat_t
	fd := int(f.Fd())
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("look at %s: %w", name, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return 0, refuse.Invalidf("%s is a folder: a node gets none of the host's folders that way; mounts give it one", name)
	case unix.S_IFCHR:
		if st.Rdev == unix.Mkdev(1, 3) {
			return null, nil
		}
	case unix.S_IFREG, unix.S_IFBLK:
		if _, err := unix.Seek(fd, 0, unix.SEEK_CUR); err == nil {
			return seekable, nil
		}
	case unix.S_IFIFO:
		return pipe, nil
	case unix.S_IFSOCK:
		if t, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && t == unix.SOCK_STREAM {
			return stream, nil
		}
	}
	return plain, nil
}

// onePlace reports whether two descriptors lead to the same place, so that the order of writes to both is visible.
func onePlace(a, b *os.File) bool {
	pid := uintptr(os.Getpid())
	const kcmpFile = 0 // KCMP_FILE: do they share one open file?
	if r, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, a.Fd(), b.Fd(), 0); errno == 0 && r == 0 {
		return true
	}
	var x, y unix.Stat_t
	if unix.Fstat(int(a.Fd()), &x) != nil || unix.Fstat(int(b.Fd()), &y) != nil || x.Dev != y.Dev || x.Ino != y.Ino {
		return false
	}
	if m := x.Mode & unix.S_IFMT; m != unix.S_IFREG && m != unix.S_IFBLK {
		return true
	}
	return appends(a) && appends(b) // otherwise each has its own offset in the file
}

func appends(f *os.File) bool {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_APPEND != 0
}

// newPipe makes a pipe. Berth's end, index ours, is non-blocking, so that Go's poller waits on it and a deadline ends
// the wait. The command's end blocks, as every program expects. Do not call Fd on Berth's end: that would make it
// block.
func newPipe(ours int) (ends [2]*os.File, fd int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return ends, -1, fmt.Errorf("make a pipe: %w", err)
	}
	if err := unix.SetNonblock(p[ours], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return ends, -1, fmt.Errorf("make a pipe: %w", err)
	}
	for i := range p {
		ends[i] = os.NewFile(uintptr(p[i]), "pipe")
	}
	return ends, p[ours], nil
}

// unread returns how many bytes are in a pipe (TIOCINQ is FIONREAD).
func unread(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}
