package server

import (
	"context"
	"encoding/json"
	"os"
	"sync"

	"github.com/coder/websocket"

	"berth/internal/site/api"
)

// session is one command for one client. Nothing that it sends has a deadline: a client may be slow, or stopped for as long as it
// likes. One that is gone for good is noticed where the kernel notices it, by a closed connection, keep-alive packets or packets
// that are not acknowledged, and then hear ends.
type session struct {
	ws    *websocket.Conn
	child *child
	lost  chan struct{} // closed when the client is gone

	mu     sync.Mutex
	input  []byte // input from the client that the command has not taken, without the piece that feed writes now
	held   int    // bytes of input that the client was not told of as taken: never more than the window
	eof    bool
	take   chan struct{} // there is more of it
	counts bool          // the client tells how much output it took
	ahead  int           // bytes of output that are on their way to a client that counts: never more than the window
	gone   bool
	news   sync.Cond // ahead or gone has changed
}

func newSession(ws *websocket.Conn) *session {
	s := &session{ws: ws, lost: make(chan struct{}), take: make(chan struct{}, 1)}
	s.news.L = &s.mu
	return s
}

// say sends a control.
func (s *session) say(ctx context.Context, c api.Control) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return s.ws.Write(ctx, websocket.MessageText, text)
}

// lose notes that the client is gone.
func (s *session) lose() {
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
	s.news.Broadcast()
	close(s.lost)
}

// taken waits until a client that counts, and has everything, closes the connection: what is still on its way would be lost if
// the server closed it. It reports whether the client has taken all output; for a client that does not count that is not
// known.
func (s *session) taken() bool {
	if !s.counts {
		return true
	}
	<-s.lost
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ahead == 0
}

// fileOf is a stream of the command's output; File is nil where it has none.
type fileOf struct{ *os.File }

// hear takes the client's messages until the client is gone.
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
		if c.Took != 0 && !s.took(c.Took) {
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

// put keeps input for the command. It refuses more than the window. Bytes are kept, not messages, so that many small messages cost no
// more than a large one.
func (s *session) put(p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held+len(p) > api.Window {
		return false
	}
	s.input, s.held = append(s.input, p...), s.held+len(p)
	s.wake()
	return true
}

// took notes how much output the client took. It refuses more than was sent.
func (s *session) took(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 0 || n > s.ahead {
		return false
	}
	s.ahead -= n
	s.news.Broadcast()
	return true
}

// room waits until a chunk of output may be on its way, and counts it; unused gives back the part of the chunk that was not
// used. If there is no room, the client is gone.
func (s *session) room() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.ahead+api.Chunk > api.Window && !s.gone {
		s.news.Wait()
	}
	if s.counts {
		s.ahead += api.Chunk
	}
	return !s.gone
}

func (s *session) unused(n int) {
	if s.counts {
		s.took(n)
	}
}

func (s *session) wake() {
	select {
	case s.take <- struct{}{}:
	default:
	}
}

// feed gives the command its input, and tells the client how much it took. Input that a command does not read any more is
// dropped, so that the client can go on to its end.
func (s *session) feed(ctx context.Context) {
	var all []byte
	closed := false
	for {
		s.mu.Lock()
		if len(all) == 0 {
			all, s.input = s.input, nil
		}
		eof := s.eof && len(all) == 0
		s.mu.Unlock()
		switch {
		case len(all) > 0:
			p := all[:min(len(all), api.Chunk)]
			all = all[len(p):]
			if !closed {
				_, err := s.child.stdin().Write(p)
				closed = err != nil
			}
			s.mu.Lock()
			s.held -= len(p)
			s.mu.Unlock()
			if s.say(ctx, api.Control{Took: len(p)}) != nil {
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

// tell sends the output of the command on one of its streams, until its end. A client that reads slowly holds the command up,
// as a pipe does.
func (s *session) tell(ctx context.Context, stream byte, f *fileOf) {
	p := make([]byte, 1+api.Chunk)
	p[0] = stream
	for s.room() {
		n, err := s.child.read(f.File, p[1:])
		s.unused(api.Chunk - n)
		if n > 0 && s.ws.Write(ctx, websocket.MessageBinary, p[:1+n]) != nil || err != nil {
			return
		}
	}
}
