package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// conn is a connection to a server, with one open file, by version 5.x of the XRootD protocol ("The XRootD Protocol",
// xrootd.org/docs). Numbers are big-endian. A request is 24 bytes and its data, an answer is 8 bytes and its data.
type conn struct {
	net    net.Conn
	handle [4]byte
}

// Requests and states of answers.
const (
	login = 3007
	open  = 3010
	read  = 3013

	ok      = 0
	okSoFar = 4000
)

// answerTime bounds a read from a starved server. It is far above all measured times.
const answerTime = 2 * time.Minute

func dial(addr string) (*conn, error) {
	n, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &conn{net: n}
	hello := make([]byte, 20)
	binary.BigEndian.PutUint32(hello[12:], 4)
	binary.BigEndian.PutUint32(hello[16:], 2012)
	if _, err = n.Write(hello); err == nil {
		_, _, err = c.answer(nil)
	}
	if err == nil {
		var body [16]byte
		copy(body[4:], "lab")
		body[14] = 5 // version of the client
		err = c.request(login, body, nil)
	}
	if err == nil {
		_, _, err = c.answer(nil)
	}
	if err != nil {
		_ = n.Close()
		return nil, fmt.Errorf("log in at %s: %w", addr, err)
	}
	return c, nil
}

func (c *conn) close() { _ = c.net.Close() }

func (c *conn) request(code uint16, body [16]byte, data []byte) error {
	b := make([]byte, 24, 24+len(data))
	b[1] = 1
	binary.BigEndian.PutUint16(b[2:], code)
	copy(b[4:], body[:])
	binary.BigEndian.PutUint32(b[20:], uint32(len(data)))
	_, err := c.net.Write(append(b, data...))
	return err
}

// answer reads one answer. It copies the data to sink, or returns it if sink is nil.
func (c *conn) answer(sink io.Writer) (status uint16, data []byte, err error) {
	var head [8]byte
	if err := c.net.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
		return 0, nil, err
	}
	if _, err := io.ReadFull(c.net, head[:]); err != nil {
		return 0, nil, err
	}
	status = binary.BigEndian.Uint16(head[2:])
	n := int64(binary.BigEndian.Uint32(head[4:]))
	if sink != nil && (status == ok || status == okSoFar) {
		_, err := io.CopyN(sink, c.net, n)
		return status, nil, err
	}
	data = make([]byte, n)
	if _, err := io.ReadFull(c.net, data); err != nil {
		return 0, nil, err
	}
	if status != ok && status != okSoFar {
		if len(data) > 4 {
			data = data[4:]
		}
		return status, nil, fmt.Errorf("the server answers %d: %s", status, strings.TrimRight(string(data), "\x00"))
	}
	return status, data, nil
}

// open opens a file for reading and returns its size.
func (c *conn) open(path string) (size int64, err error) {
	var body [16]byte
	binary.BigEndian.PutUint16(body[2:], 0x0010|0x0400) // open for reading, return the file's state
	if err := c.request(open, body, []byte(path)); err != nil {
		return 0, err
	}
	_, data, err := c.answer(nil)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", path, err)
	}
	if len(data) < 12 {
		return 0, errors.New("open: a short answer")
	}
	copy(c.handle[:], data)
	state := strings.Fields(strings.TrimRight(string(data[12:]), "\x00")) // id size flags modified
	if len(state) < 2 {
		return 0, errors.New("open: no size in the answer")
	}
	return strconv.ParseInt(state[1], 10, 64)
}

func (c *conn) read(offset int64, length int) error {
	var body [16]byte
	copy(body[:], c.handle[:])
	binary.BigEndian.PutUint64(body[4:], uint64(offset))
	binary.BigEndian.PutUint32(body[12:], uint32(length))
	if err := c.request(read, body, nil); err != nil {
		return err
	}
	var got count
	for {
		status, _, err := c.answer(&got)
		if err != nil {
			return err
		}
		if status == ok {
			break
		}
	}
	if int(got) != length {
		return fmt.Errorf("read %d bytes at %d: got %d", length, offset, got)
	}
	return nil
}

// count is a writer that counts bytes.
type count int

func (c *count) Write(p []byte) (int, error) {
	*c += count(len(p))
	return len(p), nil
}
