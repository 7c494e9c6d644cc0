package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// answerTime is how long the monitor, QEMU or the guest may take to answer what takes no time by itself.
const answerTime = 30 * time.Second

// errGone is the error of a line to a machine that has ended.
var errGone = errors.New("the machine has ended")

// mostQMP is the most bytes of one message of QEMU: the emulator may be in a guest's hands.
const mostQMP = 256 << 10

// qmp is a line to QEMU's own protocol (docs/interop/qmp-spec.rst of QEMU).
type qmp struct {
	conn    net.Conn
	answers chan answerQMP
	reason  string // of the last SHUTDOWN event; read after ended is closed
	ended   chan struct{}
}

type answerQMP struct {
	Return json.RawMessage         `json:"return"`
	Error  *struct{ Desc string }  `json:"error"`
	Event  string                  `json:"event"`
	Data   struct{ Reason string } `json:"data"`
	QMP    *struct{ Version any }  `json:"QMP"`
}

// openQMP speaks to QEMU until it is ready for commands.
func openQMP(conn net.Conn) (*qmp, error) {
	q := &qmp{conn: conn, answers: make(chan answerQMP, 1), ended: make(chan struct{})}
	greeted := make(chan struct{})
	go q.read(greeted)
	select {
	case <-greeted:
	case <-q.ended:
		return nil, errors.New("QEMU ended")
	case <-time.After(reportTime):
		return nil, errors.New("QEMU does not answer")
	}
	if err := q.call("qmp_capabilities"); err != nil {
		return nil, err
	}
	return q, q.call("query-status") // answered by the main loop, when all devices are there
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
		if in.Decode(&a) != nil {
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
		case a.Event == "":
			select {
			case q.answers <- a:
			default: // nobody asked
			}
		}
	}
}

// call runs a command. Only one at a time may run.
func (q *qmp) call(command string) error {
	_ = q.conn.SetWriteDeadline(time.Now().Add(answerTime))
	if err := json.NewEncoder(q.conn).Encode(map[string]string{"execute": command}); err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			err = errGone
		}
		return fmt.Errorf("QMP %s: %w", command, err)
	}
	select {
	case a := <-q.answers:
		if a.Error != nil {
			return fmt.Errorf("QMP %s: %s", command, a.Error.Desc)
		}
		return nil
	case <-q.ended:
		return fmt.Errorf("QMP %s: %w", command, errGone)
	case <-time.After(answerTime):
		return fmt.Errorf("QMP %s: no answer in %s", command, answerTime)
	}
}
