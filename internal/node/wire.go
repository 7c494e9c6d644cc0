package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/jsonfile"
	"berth/internal/oci"
	"berth/internal/refuse"
)

// The keeper's socket carries one JSON object a packet. A newer berth talks to an older keeper and the other way
// round, so words are only ever added.
type request struct {
	Do     string      `json:"do"` // create | watch | exit | guard | flush log | end log
	Node   string      `json:"node"`
	PID    int         `json:"pid,omitempty"`
	Launch *oci.Launch `json:"launch,omitempty"` // its files travel beside it: stdin, stdout, stderr, the node's lock
}

type reply struct {
	Err     string      `json:"err,omitempty"`
	Kind    refuse.Kind `json:"kind,omitempty"` // of a refusal
	Remedy  string      `json:"remedy,omitempty"`
	Code    int         `json:"code,omitempty"` // of an oci.CommandError
	Full    bool        `json:"full,omitempty"` // a file system has no space left
	Command string      `json:"command,omitempty"`
	Status  uint32      `json:"status,omitempty"`
	Known   bool        `json:"known,omitempty"`
	After   time.Time   `json:"after,omitzero"`
}

const maxPacket = 128 << 10

func send(c *net.UnixConn, v any, files ...*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxPacket {
		return fmt.Errorf("message to the keeper is %d bytes, at most %d", len(b), maxPacket)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	return err
}

// receive reads one message and the files that came with it, which are then the caller's.
func receive(c *net.UnixConn, v any) ([]*os.File, error) {
	b := make([]byte, maxPacket)
	oob := make([]byte, unix.CmsgSpace(16*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
		for _, m := range msgs {
			fds, err := unix.ParseUnixRights(&m)
			if err != nil {
				continue
			}
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				files = append(files, os.NewFile(uintptr(fd), "passed"))
			}
		}
	}
	switch {
	case n == 0:
		err = net.ErrClosed
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("message was cut off")
	default:
		if err = json.Unmarshal(b[:n], v); err != nil {
			err = fmt.Errorf("a packet that cannot be read: %s", jsonfile.Wrong(b[:n], err))
		}
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// fromRoot reports whether the host's root is at the other end: what the keeper is asked to run, it runs as root. The
// mode of the socket says so too.
func fromRoot(c *net.UnixConn) bool {
	conn, err := c.SyscallConn()
	if err != nil {
		return false
	}
	root := false
	err = conn.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		root = err == nil && cred.Uid == 0
	})
	return err == nil && root
}
