package server

import (
	"context"
	"encoding/json"
	"os"

	"github.com/coder/websocket"

	"berth/internal/api"
)

// fileOf is a stream of the command's output; File is nil where it has none.
type fileOf struct{ *os.File }

// hear takes what the client sends, until he is gone.
func (s *session) hear(ctx context.Context) {
	for {
		kind, msg, err := s.ws.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if len(msg) == 0 || msg[0] != api.Stdin || !s.put(msg[1:]) {
				return // it keeps to no rule: as good as gone
			}
			continue
		}
		var c api.Control
		if json.Unmarshal(msg, &c) != nil {
			return
		}
		if c.Signal != "" {
			s.child.signal(c.Signal)
		}
		if c.Columns > 0 {
			s.child.resize(c.Rows, c.Columns)
		}
		if c.EOF {
			s.mu.Lock()
			s.eof = true
			s.mu.Unlock()
			s.wake()
		}
	}
}

// put keeps input for the command. It refuses more than the window.
func (s *session) put(p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held+len(p) > api.Window {
		return false
	}
	s.input, s.held = append(s.input, p), s.held+len(p)
	s.wake()
	return true
}

func (s *session) wake() {
	select {
	case s.take <- struct{}{}:
	default:
	}
}

// feed gives the command its input, and tells the client how much it took. What a command that reads no more does not take is
// dropped, so that the client can go on to its end.
func (s *session) feed(ctx context.Context) {
	closed := false
	for {
		s.mu.Lock()
		var p []byte
		if len(s.input) > 0 {
			p, s.input = s.input[0], s.input[1:]
		}
		eof := s.eof && p == nil
		s.mu.Unlock()
		switch {
		case p != nil:
			if !closed {
				_, err := s.child.stdin().Write(p)
				closed = err != nil
			}
			s.mu.Lock()
			s.held -= len(p)
			s.mu.Unlock()
			if s.say(api.Control{Took: len(p)}) != nil {
				return
			}
		case eof:
			if s.child.in != nil {
				s.child.in.Close()
			}
			return
		default:
			select {
			case <-s.take:
			case <-ctx.Done():
				return
			}
		}
	}
}

// tell sends what the command writes to one of its streams, until its end. A client who reads slowly holds the command up, as a
// pipe does.
func (s *session) tell(ctx context.Context, stream byte, f *fileOf) {
	p := make([]byte, 1+api.Chunk)
	p[0] = stream
	for {
		n, err := s.child.read(f.File, p[1:])
		if n > 0 && s.ws.Write(ctx, websocket.MessageBinary, p[:1+n]) != nil {
			return
		}
		if err != nil {
			return
		}
	}
}
