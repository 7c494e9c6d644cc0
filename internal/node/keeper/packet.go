package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// request is a request of a command. The socket carries one JSON object a packet, with files beside it.
type request struct {
	Hello  Version         `json:"hello"`
	Accept *Version        `json:"accept,omitempty"` // the keeper's version, if the command goes on although it is another
	Do     string          `json:"do"`
	Node   string          `json:"node,omitempty"`
	PID    int             `json:"pid,omitempty"`
	Launch json.RawMessage `json:"launch,omitempty"`
}

// The requests to the keeper: values of request.Do.
const (
	doCreate  = "create" // start a runtime; files: stdin, stdout, stderr, the node's lock
	doWatch   = "watch"
	doExit    = "exit"
	doGuard   = "guard"
	doFlush   = "flush log"
	doEndLog  = "end log"
	doUpgrade = "upgrade" // files: the program that the keeper becomes
)

// reply is an answer of the keeper.
type reply struct {
	Hello   Version     `json:"hello"`
	Differs bool        `json:"differs,omitempty"` // the versions differ, and nothing was done
	Err     string      `json:"err,omitempty"`
	Kind    refuse.Kind `json:"kind,omitempty"` // of a refusal
	Remedy  string      `json:"remedy,omitempty"`
	Code    int         `json:"code,omitempty"` // of a command that cannot run
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

// packet is one packet with the files that came with it, which are the receiver's.
type packet struct {
	data  []byte
	files []*os.File
}

// receive waits for a packet and reads it. It calls before, if set, before it takes anything from the socket, and undo if
// there was nothing to take.
func receive(c *net.UnixConn, before, undo func()) (*packet, error) {
	conn, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	data, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(16*4))
	var n, oobn, flags int
	waited := conn.Read(func(fd uintptr) bool {
		if before != nil {
			before()
		}
		for {
			n, oobn, flags, _, err = unix.Recvmsg(int(fd), data, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if errors.Is(err, unix.EAGAIN) {
			if undo != nil {
				undo()
			}
			return false
		}
		return true
	})
	if waited != nil {
		if before != nil {
			before() // as after a packet: the caller undoes it
		}
		return nil, waited
	}
	if err != nil {
		return nil, err
	}
	p := &packet{data: data[:n], files: passed(oob[:oobn])}
	switch {
	case n == 0:
		err = net.ErrClosed
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("message was cut off")
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func passed(oob []byte) (files []*os.File) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files
}

func (p *packet) close() {
	for _, f := range p.files {
		f.Close()
	}
}

// greeting has the fields of packets that all versions share.
type greeting struct {
	Hello   Version  `json:"hello"`
	Accept  *Version `json:"accept"`
	Do      string   `json:"do"`
	Differs bool     `json:"differs"`
}

// greeting reads nothing else of a packet.
func (p *packet) greeting() (g greeting) {
	_ = json.Unmarshal(p.data, &g) // mistakes in it are reported when it is decoded strictly
	return g
}

// fromRoot reports whether the host's root is at the other end: the keeper runs what it is asked to run as root. The mode of
// the socket says so too.
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
