// Package wire is the protocol between the lab's harness and the agent in a guest, over a virtio-serial port.
//
// A port carries one request at a time: a Request as a line of JSON, then Size bytes; the answer is a series of frames
// that ends with one of kind End. The two sides have no common start of the stream, because the guest may be reset to a
// snapshot at any time. So the agent skips empty lines, and both sides are silent between requests.
package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Ports is the number of ports of a machine, and so of concurrent requests. Their names are Port(0), Port(1) ….
const Ports = 4

// Port returns the name of a port.
func Port(i int) string { return fmt.Sprintf("lab.%d", i) }

// Kinds of requests.
const (
	Ping = "ping" // set the clock to Now; the answer has the boot id
	Run  = "run"  // run Args with Size bytes as its standard input
	Put  = "put"  // write Size bytes to the file Path with Mode
)

// Request is one thing to do in a guest.
type Request struct {
	Do      string   `json:"do"`
	Size    int64    `json:"size,omitempty"`
	Args    []string `json:"args,omitempty"`
	Timeout int64    `json:"timeout,omitempty"` // milliseconds; then the command's session is killed
	Path    string   `json:"path,omitempty"`
	Mode    uint32   `json:"mode,omitempty"`
	Now     int64    `json:"now,omitempty"` // nanoseconds since 1970
}

// Kinds of frames.
const (
	Out = 'o' // what the command wrote to standard output
	Err = 'e' // and to standard error
	End = 'x' // the last frame: a Result as JSON
)

// Result is how a request ended.
type Result struct {
	Code    int    `json:"code"`              // of the command; 128+N for signal N
	Timeout bool   `json:"timeout,omitempty"` // it was killed for taking too long
	Error   string `json:"error,omitempty"`   // why the request could not be done
	Boot    string `json:"boot,omitempty"`    // the kernel's boot id
}

// mostFrame is the largest frame that ReadFrame accepts, in bytes.
const mostFrame = 1 << 20

// WriteFrame writes one frame, in one call of Write.
func WriteFrame(w io.Writer, kind byte, payload []byte) error {
	frame := append([]byte{kind}, binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...)
	_, err := w.Write(append(frame, payload...))
	return err
}

// ReadFrame reads one frame.
func ReadFrame(r io.Reader) (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > mostFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", n)
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(r, payload)
	return head[0], payload, err
}
