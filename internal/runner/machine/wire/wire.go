// Package wire is what a machine's monitor on the host and Berth's program in the guest say to each other, over one port of
// virtio-serial.
//
// Both send frames. Each belongs to a channel: channel 0 is the guest's own command, the others are commands of exec. A stream
// of a channel may send as many bytes as its reader has granted, so that one that nobody reads does not hold up the others.
//
// What comes from a guest is hostile: a frame is at most 64 KiB, and each reader knows before it reads how much it will keep.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Port is the name of the port.
const Port = "berth.agent"

// Version is the version of what is said here. A guest of another version is refused.
const Version = 1

// Kind is the kind of a frame.
type Kind byte

// The kinds of frames.
const (
	Hello   Kind = 'h' // guest: it has booted; Greeting
	Begin   Kind = 'b' // host: make the root, and run the command as channel 0; Setup
	Run     Kind = 'r' // host: run a command; Command
	Started Kind = 's' // guest: the command runs
	Failed  Kind = 'f' // guest: it cannot run; Failure
	Ended   Kind = 'e' // guest: it has ended, after the last of its output; End
	Signal  Kind = 'k' // host: send it a signal, one byte; signal 9 goes to its whole session
	Heard   Kind = 'a' // guest: one byte says whether the signal was sent (1), or would not have been noticed (0)
	Input   Kind = 'i' // host: bytes for standard input; none: its end, by which a terminal hangs up
	Output  Kind = 'o' // guest: bytes of standard output, or those that its terminal shows
	Resize  Kind = 'w' // host: the user's terminal has this size; rows and columns, two bytes each
	Error   Kind = 'x' // guest: bytes of standard error
	Grant   Kind = 'g' // both: the reader of a stream has read so many bytes, and as many more may be sent; a Kind of stream and 4 bytes
	Closed  Kind = 'c' // both: nobody reads a stream any more; its Kind
)

const (
	headSize = 7 // kind, channel, length
	// MostFrame is the size of the largest frame in bytes, its head included.
	MostFrame = 64 << 10
	// MostPayload is the most bytes that a frame carries.
	MostPayload = MostFrame - headSize
	// Window is how many bytes a stream may be ahead of its reader.
	Window = 128 << 10
	// Piece is the most bytes of a stream that go into one frame.
	Piece = 16 << 10
)

// Frame is one message.
type Frame struct {
	Kind    Kind
	Channel uint32
	Payload []byte
}

// Greeting is what a guest says first.
type Greeting struct {
	Version int    `json:"version"`
	Kernel  string `json:"kernel"` // its release
}

// Setup is what the guest is to make of itself.
type Setup struct {
	Hostname   string            `json:"hostname"`
	ImageType  string            `json:"image_type"`           // erofs or squashfs
	DeltaSize  int64             `json:"delta_size,omitempty"` // most bytes of the writes to the root, in memory; 0: half of the memory
	DeltaFS    string            `json:"delta_fs,omitempty"`   // they go to the disk "delta" instead, which has this file system
	Disks      []Disk            `json:"disks,omitempty"`
	Files      map[string]string `json:"files,omitempty"` // the node's own files, by path below the root
	Interfaces []Interface       `json:"interfaces,omitempty"`
	Init       bool              `json:"init,omitempty"` // the command is an init system and becomes process 1
	Command    Command           `json:"command"`
}

// Disk is a disk of the guest, found by its serial number, or a folder of the host, found by its tag.
type Disk struct {
	Serial   string `json:"serial"`       // the tag if FS is VirtioFS
	FS       string `json:"fs,omitempty"` // its file system, mounted at Target; "": Target is its device node
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"` // it is mounted read-only
}

// VirtioFS is the file system of a folder of the host.
const VirtioFS = "virtiofs"

// The serial numbers of the disks of the root.
const (
	ImageSerial = "image"
	DeltaSerial = "delta"
)

// Interface is an interface of the guest, found by its MAC.
type Interface struct {
	Name    string      `json:"name"`
	MAC     string      `json:"mac"`
	MTU     int         `json:"mtu"` // bytes
	Address []string    `json:"addresses,omitempty"`
	Gateway string      `json:"gateway,omitempty"`
	Routes  [][2]string `json:"routes,omitempty"` // prefix, gateway
}

// Command is a command to run in the guest.
type Command struct {
	Args       []string `json:"args"`
	Env        []string `json:"env,omitempty"` // NAME=value
	Cwd        string   `json:"cwd,omitempty"`
	UID        uint32   `json:"uid,omitempty"`
	GID        uint32   `json:"gid,omitempty"`
	Groups     []uint32 `json:"groups,omitempty"`
	NoNewPrivs bool     `json:"no_new_privs,omitempty"`
	Timeout    int64    `json:"timeout,omitempty"`    // milliseconds; then its session is killed; 0: never
	OneOutput  bool     `json:"one_output,omitempty"` // standard error goes where standard output goes, in the order of the writes
	Terminal   *Size    `json:"terminal,omitempty"`   // its streams are one terminal of the guest's; nil: pipes
	Copier     [][]byte `json:"copier,omitempty"`     // the command is Berth's own copier with these words, of any bytes; it reports to standard error
}

// Size is the size of a terminal, in characters; 0: not known.
type Size struct {
	Rows    uint16 `json:"rows,omitempty"`
	Columns uint16 `json:"columns,omitempty"`
}

// Failure says why a command cannot run. Code is 126 or 127, as in shells; 0: it is not the command's fault.
type Failure struct {
	Code int    `json:"code,omitempty"`
	Why  string `json:"why"`
}

// End says how a command ended.
type End struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"` // that ended it; then Code means nothing
}

// Read reads one frame. It reads at most MostFrame bytes.
func Read(r io.Reader) (Frame, error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(head[0]), Channel: binary.BigEndian.Uint32(head[1:])}
	n := int(binary.BigEndian.Uint16(head[5:]))
	if n > MostPayload {
		return Frame{}, fmt.Errorf("a frame of %d bytes; at most %d are allowed", n, MostPayload)
	}
	f.Payload = make([]byte, n)
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		return Frame{}, fmt.Errorf("a frame that is cut off: %w", err)
	}
	return f, nil
}

// append appends the frame's bytes.
func (f Frame) append(to []byte) ([]byte, error) {
	if len(f.Payload) > MostPayload {
		return nil, fmt.Errorf("a message of %d bytes; at most %d are allowed", len(f.Payload), MostPayload)
	}
	to = append(to, byte(f.Kind))
	to = binary.BigEndian.AppendUint32(to, f.Channel)
	to = binary.BigEndian.AppendUint16(to, uint16(len(f.Payload)))
	return append(to, f.Payload...), nil
}

// Decode reads the JSON of a frame into v.
func (f Frame) Decode(v any) error {
	if err := json.Unmarshal(f.Payload, v); err != nil {
		return fmt.Errorf("a frame %q whose content cannot be read: %w", f.Kind, err)
	}
	return nil
}

// Writer writes frames; several goroutines may use it.
type Writer struct {
	mu sync.Mutex
	to io.Writer
}

// NewWriter returns a writer of frames to w.
func NewWriter(w io.Writer) *Writer { return &Writer{to: w} }

// Send writes a frame.
func (w *Writer) Send(kind Kind, channel uint32, payload []byte) error {
	b, err := Frame{kind, channel, payload}.append(nil)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err = w.to.Write(b)
	return err
}

// SendJSON writes a frame with the JSON of v.
func (w *Writer) SendJSON(kind Kind, channel uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Send(kind, channel, b)
}

// SendGrant lets the other side send so many more bytes of a stream.
func (w *Writer) SendGrant(channel uint32, stream Kind, n int) error {
	return w.Send(Grant, channel, binary.BigEndian.AppendUint32([]byte{byte(stream)}, uint32(n)))
}

// Granted reads a frame of kind Grant.
func (f Frame) Granted() (stream Kind, n int, err error) {
	if len(f.Payload) != 5 {
		return 0, 0, fmt.Errorf("a grant of %d bytes; it has 5", len(f.Payload))
	}
	n = int(binary.BigEndian.Uint32(f.Payload[1:]))
	if n > Window {
		return 0, 0, fmt.Errorf("a grant for %d bytes; at most %d are allowed", n, Window)
	}
	return Kind(f.Payload[0]), n, nil
}

// Size reads a frame of kind Resize.
func (f Frame) Size() (Size, error) {
	if len(f.Payload) != 4 {
		return Size{}, fmt.Errorf("a size of %d bytes; it has 4", len(f.Payload))
	}
	return Size{binary.BigEndian.Uint16(f.Payload), binary.BigEndian.Uint16(f.Payload[2:])}, nil
}

// ErrClosed is the error of a stream that was closed.
var ErrClosed = errors.New("the stream is closed")

// Sender sends one stream of a channel, within what was granted.
type Sender struct {
	w       *Writer
	channel uint32
	kind    Kind

	read   func(n int)
	mu     sync.Mutex
	more   sync.Cond
	left   int
	closed bool
}

// NewSender returns the sender of a stream. read, which may be nil and must not wait, is called with each number of bytes that the
// other side has read, and not after Close.
func NewSender(w *Writer, channel uint32, kind Kind, read func(n int)) *Sender {
	s := &Sender{w: w, channel: channel, kind: kind, read: read, left: Window}
	s.more.L = &s.mu
	return s
}

// Write implements io.Writer. It waits for grants.
func (s *Sender) Write(b []byte) (done int, err error) {
	for len(b) > 0 {
		s.mu.Lock()
		for s.left == 0 && !s.closed {
			s.more.Wait()
		}
		if s.closed {
			s.mu.Unlock()
			return done, ErrClosed
		}
		n := min(len(b), s.left, Piece)
		s.left -= n
		s.mu.Unlock()
		if err := s.w.Send(s.kind, s.channel, b[:n]); err != nil {
			return done, err
		}
		b, done = b[n:], done+n
	}
	return done, nil
}

// Settle waits until all that was sent has been read. It returns false if the stream was closed before.
func (s *Sender) Settle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.left < Window && !s.closed {
		s.more.Wait()
	}
	return !s.closed
}

// Grant lets the sender send so many more bytes. More than it has sent is a mistake of the other side.
func (s *Sender) Grant(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left+n > Window {
		return fmt.Errorf("grants for %d bytes; at most %d are allowed", s.left+n, Window)
	}
	if s.read != nil && !s.closed {
		s.read(n)
	}
	s.left += n
	s.more.Broadcast()
	return nil
}

// Close ends waiting writes.
func (s *Sender) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.more.Broadcast()
}

// Receiver hands a stream of a channel to a writer. What has arrived and is not written yet is at most Window bytes.
type Receiver struct {
	w       *Writer
	channel uint32
	kind    Kind

	mu     sync.Mutex
	change sync.Cond
	got    []byte
	left   int // bytes that may come until more are granted
	last   bool
	done   chan struct{}
}

// NewReceiver returns the receiver of a stream, which writes to a writer, and grants by g what that has taken. After an error of the
// writer it says so to the sender, and drops the rest.
func NewReceiver(g *Writer, channel uint32, kind Kind, to io.Writer, ended func()) *Receiver {
	r := &Receiver{w: g, channel: channel, kind: kind, left: Window, done: make(chan struct{})}
	r.change.L = &r.mu
	go r.run(to, ended)
	return r
}

// Take takes what has arrived, and after End drops it. It never waits. More than was granted is an error.
func (r *Receiver) Take(b []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(b) > r.left {
		return fmt.Errorf("a stream sent more than was granted")
	}
	r.left -= len(b)
	if r.last {
		return nil
	}
	r.got = append(r.got, b...)
	r.change.Signal()
	return nil
}

// End says that nothing more arrives.
func (r *Receiver) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = true
	r.change.Signal()
}

// Flush waits until all that has arrived is written, after End.
func (r *Receiver) Flush() { <-r.done }

func (r *Receiver) run(to io.Writer, ended func()) {
	defer close(r.done)
	if ended != nil {
		defer ended()
	}
	failed := false
	for {
		r.mu.Lock()
		for len(r.got) == 0 && !r.last {
			r.change.Wait()
		}
		if len(r.got) == 0 {
			r.mu.Unlock()
			return
		}
		n := min(len(r.got), Piece)
		piece := append([]byte(nil), r.got[:n]...)
		r.mu.Unlock()
		wrote := 0
		var err error
		if !failed {
			wrote, err = to.Write(piece)
			failed = err != nil
		}
		r.mu.Lock()
		r.got = r.got[:copy(r.got, r.got[n:])]
		r.left += wrote
		r.mu.Unlock()
		if wrote > 0 {
			_ = r.w.SendGrant(r.channel, r.kind, wrote) // a broken line ends its reader
		}
		if err != nil {
			_ = r.w.Send(Closed, r.channel, []byte{byte(r.kind)})
		}
	}
}
