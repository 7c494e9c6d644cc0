package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// SystemLog is the socket at which journald or syslogd takes lines.
const SystemLog = "/dev/log"

// authNotice is the facility authpriv with the severity notice, as syslog(3) counts them.
const authNotice = 10<<3 | 5

// hears is how long the system's log may take for a line, and hung is how long it has where it did not take the line before: acts wait for each
// other here, and together do not wait for one that hangs.
const (
	hears = 100 * time.Millisecond
	hung  = 2 * time.Millisecond
)

// system is the system's log.
type system struct {
	at string // its socket; "": nothing is told

	mu    sync.Mutex
	conn  net.Conn
	fails bool // the last line was not told
}

// tell tells a line. One that cannot be told is said in the agent's log, the first of several.
func (s *system) tell(line []byte) {
	if s.at == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Appendf(nil, "<%d>berthd-audit[%d]: %s", authNotice, os.Getpid(), line)
	wait := hears
	if s.fails {
		wait = hung
	}
	err := s.write(text, wait)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // perhaps it was started anew
		err = s.write(text, wait)
	}
	if err != nil && !s.fails && !errors.Is(err, fs.ErrNotExist) {
		slog.Warn("acts are in the audit log alone: the system's log does not take them", "socket", s.at, "err", err)
	}
	s.fails = err != nil
}

func (s *system) write(text []byte, wait time.Duration) (err error) {
	if s.conn == nil {
		if s.conn, err = net.Dial("unixgram", s.at); err != nil { //nolint:noctx // a datagram socket connects at once
			s.conn = nil
			return err
		}
	}
	err = s.conn.SetWriteDeadline(time.Now().Add(wait))
	if err == nil {
		_, err = s.conn.Write(text)
	}
	if err != nil {
		s.conn.Close()
		s.conn = nil
	}
	return err
}
