package netserve

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// request is what root asks of the process: one JSON object a packet, with sockets beside it. Every request has one reply.
type request struct {
	Do    string   `json:"do"`
	Keys  []string `json:"keys,omitempty"`  // "lacks": sockets in question; else: those beside the packet
	Nodes []string `json:"nodes,omitempty"` // "lacks": nodes in question
	Entry *Entry   `json:"entry,omitempty"` // "set"
	Needs []socket `json:"needs,omitempty"` // "set": all sockets of the entry
	Node  string   `json:"node,omitempty"`  // "drop"
}

const (
	doLacks   = "lacks"   // say which of these sockets and nodes are not there
	doSockets = "sockets" // take sockets, for the set that follows
	doSet     = "set"     // serve a node so from now on
	doDrop    = "drop"    // serve it no more
)

type reply struct {
	Keys  []string `json:"keys,omitempty"`
	Nodes []string `json:"nodes,omitempty"`
	Err   string   `json:"err,omitempty"`
	PID   int      `json:"pid"`            // of the process; SO_PEERCRED tells only which process made its socket
	Last  bool     `json:"last,omitempty"` // no node is left: the process ends
}

const (
	maxPacket = 128 << 10
	maxFiles  = 200 // beside a packet; the kernel passes 253 (SCM_MAX_FD)
)

func send(c *net.UnixConn, v any, files ...*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxPacket {
		return fmt.Errorf("a message of %d bytes, at most %d", len(b), maxPacket)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	return err
}

// receive reads a packet. The files are the caller's.
func receive(c *net.UnixConn, v any) (files []*os.File, err error) {
	data, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(maxFiles*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(data, oob)
	if err != nil {
		return nil, err
	}
	if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
		for _, m := range msgs {
			fds, _ := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "socket"))
			}
		}
	}
	switch {
	case n == 0:
		err = net.ErrClosed
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("a message was cut off")
	default:
		err = json.Unmarshal(data[:n], v)
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// peer returns the process at the other end of a connection.
func peer(c *net.UnixConn) (*unix.Ucred, error) {
	conn, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var why error
	if err := conn.Control(func(fd uintptr) { cred, why = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, err
	}
	return cred, why
}
