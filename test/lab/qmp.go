package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// qmp is a connection to QEMU's machine protocol (docs/interop/qmp-spec.rst of QEMU).
type qmp struct {
	mu   sync.Mutex
	conn net.Conn
	in   *json.Decoder
}

func dialQMP(path string) (*qmp, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	q := &qmp{conn: c, in: json.NewDecoder(c)}
	var greeting any
	if err := q.in.Decode(&greeting); err != nil {
		return nil, err
	}
	_, err = q.call("qmp_capabilities", nil)
	return q, err
}

func (q *qmp) close() {
	if q != nil {
		_ = q.conn.Close()
	}
}

// call runs a command and returns its answer.
func (q *qmp) call(command string, arguments any) (json.RawMessage, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	_ = q.conn.SetDeadline(time.Now().Add(time.Minute))
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(q.conn).Encode(request); err != nil {
		return nil, fmt.Errorf("QMP %s: %w", command, err)
	}
	for {
		var answer struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := q.in.Decode(&answer); err != nil {
			return nil, fmt.Errorf("QMP %s: %w", command, err)
		}
		switch {
		case answer.Error != nil:
			return nil, fmt.Errorf("QMP %s: %s", command, answer.Error.Desc)
		case answer.Return != nil:
			return answer.Return, nil
		} // else an event
	}
}

// monitor runs a command of the human monitor. Any output is an error.
func (q *qmp) monitor(line string) error {
	said, err := q.call("human-monitor-command", map[string]string{"command-line": line})
	if err != nil {
		return err
	}
	var text string
	if err := json.Unmarshal(said, &text); err != nil {
		return err
	}
	if text = strings.TrimSpace(text); text != "" {
		return errors.New(line + ": " + text)
	}
	return nil
}
