package streams

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Remote is the far side of a Terminal whose command is in a machine, which has a kernel of its own: no descriptor leads there, and
// bytes are carried instead. Neither file blocks.
type Remote struct {
	Data  *os.File // a socket: what is typed is read from it, what the terminal shows is written to it. It ends when the user has gone
	Sizes *os.File // a pipe: the sizes of the user's terminal, SizeBytes each, as AppendSize writes them
}

// SizeBytes is how many bytes a size has.
const SizeBytes = 4

// AppendSize appends a terminal's size: rows and columns, two bytes each, the higher first.
func AppendSize(to []byte, rows, columns uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(to, rows), columns)
}

// Close closes both files.
func (r Remote) Close() error { return errors.Join(r.Data.Close(), r.Sizes.Close()) }

// openRemote makes both sides: the terminal's, to be given to use, and the far one.
func openRemote() (data, sizes int, far Remote, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, 0, far, fmt.Errorf("make the terminal's line: %w", err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		unix.Close(pair[0])
		unix.Close(pair[1])
		return 0, 0, far, fmt.Errorf("make the terminal's line: %w", err)
	}
	return pair[0], pipe[1], Remote{os.NewFile(uintptr(pair[1]), "terminal"), os.NewFile(uintptr(pipe[0]), "sizes")}, nil
}

// OpenRemote makes a Terminal for a command in a machine, and its far side.
func OpenRemote() (*Terminal, Remote, error) {
	data, sizes, far, err := openRemote()
	if err != nil {
		return nil, far, err
	}
	t := &Terminal{restore: func() {}}
	t.use(data, sizes)
	return t, far, nil
}

// SendRemote gives the Terminal that listens at path a terminal in a machine, and returns its far side.
func SendRemote(path string) (far Remote, err error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return far, fmt.Errorf("reach the terminal's socket: %w", err)
	}
	defer c.Close()
	data, sizes, far, err := openRemote()
	if err != nil {
		return far, err
	}
	_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(data, sizes), nil)
	unix.Close(data)
	unix.Close(sizes)
	if err != nil {
		far.Close()
		return far, fmt.Errorf("send the terminal: %w", err)
	}
	return far, nil
}
