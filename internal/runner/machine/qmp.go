package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// answerTime is how long the monitor, QEMU or the guest may take to answer what takes no time by itself.
const answerTime = 30 * time.Second

// errGone is the error of a line to a machine that has ended.
var errGone = errors.New("the machine has ended")

// mostQMP is the most bytes of one message of QEMU: the emulator may be in a guest's hands.
const mostQMP = 256 << 10

// qmp is a line to QEMU's own protocol (docs/interop/qmp-spec.rst of QEMU). One command at a time is on its way: a QEMU that does not answer
// gets no more of them, and who asks meanwhile waits for as long as he wants to.
type qmp struct {
	conn  net.Conn
	turn  chan struct{} // holds one while a command is on its way, also if nobody waits for its answer any more
	ended chan struct{}

	mu      sync.Mutex
	last    int            // the number of the last command
	answers chan answerQMP // takes the answer to the command that is on its way; nil: none is
	resized chan struct{}  // closed, and another one in its place, when the guest's memory has changed

	reason string // of the last SHUTDOWN event; read after ended is closed
	lost   error  // why the line ended; read after ended is closed
}

func newQMP(conn net.Conn) *qmp {
	return &qmp{conn: conn, turn: make(chan struct{}, 1), ended: make(chan struct{}), resized: make(chan struct{})}
}

type commandQMP struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
	ID        int    `json:"id"`
}

type answerQMP struct {
	ID     int                     `json:"id"`
	Return json.RawMessage         `json:"return"`
	Error  *struct{ Desc string }  `json:"error"`
	Event  string                  `json:"event"`
	Data   struct{ Reason string } `json:"data"`
	QMP    *struct{ Version any }  `json:"QMP"`
}

// openQMP speaks to QEMU until it is ready for commands.
func openQMP(conn net.Conn) (*qmp, error) {
	q := newQMP(conn)
	greeted := make(chan struct{})
	go q.read(greeted)
	select {
	case <-greeted:
	case <-q.ended:
		return nil, errors.New("QEMU ended")
	case <-time.After(reportTime):
		return nil, errors.New("QEMU does not answer")
	}
	if err := q.call(context.Background(), "qmp_capabilities", nil, nil); err != nil {
		return nil, err
	}
	return q, q.call(context.Background(), "query-status", nil, nil) // answered by the main loop, when all devices are there
}

// limited fails after so many bytes without reset.
type limited struct {
	from io.Reader
	left int
}

func (l *limited) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, errors.New("a message of QEMU is too long")
	}
	n, err := l.from.Read(b[:min(len(b), l.left)])
	l.left -= n
	return n, err
}

func (q *qmp) read(greeted chan struct{}) {
	defer close(q.ended)
	from := &limited{from: q.conn}
	in := json.NewDecoder(from)
	for {
		from.left = mostQMP
		var a answerQMP
		if err := in.Decode(&a); err != nil {
			q.lost = errGone
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, unix.ECONNRESET) {
				q.lost = fmt.Errorf("QEMU breaks its protocol: %w", err)
			}
			return
		}
		switch {
		case a.QMP != nil:
			if greeted != nil {
				close(greeted)
				greeted = nil
			}
		case a.Event == "SHUTDOWN":
			q.reason = a.Data.Reason
		case a.Event == "BALLOON_CHANGE":
			q.mu.Lock()
			close(q.resized)
			q.resized = make(chan struct{})
			q.mu.Unlock()
		case a.Event == "":
			q.take(a)
		}
	}
}

// take gives an answer to who waits for it. One to no command, or once more, is left.
func (q *qmp) take(a answerQMP) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.answers == nil || a.ID != q.last {
		return
	}
	q.answers <- a // has room for it
	q.answers = nil
	<-q.turn
}

// changes returns a channel that is closed when the guest's memory changes: at most once a second, and after the last change.
func (q *qmp) changes() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.resized
}

// call runs a command with its arguments, nil for none, and reads what it returns into result, unless that is nil. It waits until ctx ends,
// and no longer than answerTime, for its turn and for the answer. A command that did not get its turn was not sent.
func (q *qmp) call(ctx context.Context, command string, arguments, result any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTime, fmt.Errorf("no answer in %s", answerTime))
	defer cancel()
	answers, err := q.send(ctx, &commandQMP{Execute: command, Arguments: arguments})
	var a answerQMP
	if err == nil {
		select {
		case a = <-answers:
		case <-q.ended:
			err = q.lost
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	switch {
	case err != nil:
	case a.Error != nil:
		err = errors.New(a.Error.Desc)
	case result != nil:
		err = json.Unmarshal(a.Return, result)
	}
	if err != nil {
		return fmt.Errorf("QMP %s: %w", command, err)
	}
	return nil
}

// send sends a command once it is its turn, and returns what takes the answer.
func (q *qmp) send(ctx context.Context, c *commandQMP) (answers chan answerQMP, err error) {
	select {
	case q.turn <- struct{}{}:
	case <-q.ended:
		return nil, q.lost
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if ctx.Err() != nil { // both came
		<-q.turn
		return nil, context.Cause(ctx)
	}
	q.mu.Lock()
	q.last++
	c.ID, answers = q.last, make(chan answerQMP, 1)
	q.answers = answers
	q.mu.Unlock()
	_ = q.conn.SetWriteDeadline(time.Now().Add(answerTime))
	if err := json.NewEncoder(q.conn).Encode(c); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			q.conn.Close() // what comes next would be taken for the rest of this one
		} else if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) { // what it said last is yet to be read
			err = errGone
		}
		return nil, err
	}
	return answers, nil
}
