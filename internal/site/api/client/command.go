package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/coder/websocket"

	"berth/internal/site/api"
	"berth/internal/sys/jsonfile"
)

// Streams are the files that a command on another host reads and writes, and the signals that are passed on to it.
type Streams struct {
	In       *os.File
	Out, Err io.Writer
	Signals  <-chan string    // names of signals for the command
	Sizes    <-chan [2]uint16 // rows and columns of the terminal, when they change
}

// errLost says that the connection ended before the command.
var errLost = errors.New("the connection was lost: the command there was asked to end, as if berth had been killed")

// Command runs a command line of berth on the agent's host, or with path one in a node, and returns its exit code.
func (c *Client) Command(ctx context.Context, path string, start api.Start, s Streams) (int, error) {
	for _, word := range start.Args {
		if err := jsonfile.CheckText("the word", word); err != nil {
			return 0, err
		}
	}
	start.Counts = true
	text, err := jsonfile.Marshal(start)
	if err != nil {
		return 0, err
	}
	ws, answer, err := websocket.Dial(ctx, c.base+path, &websocket.DialOptions{HTTPClient: c.http}) //nolint:bodyclose // it is closed there
	if err != nil {
		if answer != nil && answer.StatusCode >= 400 {
			return 0, c.problem(answer)
		}
		return 0, c.unreached(err)
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(1 << 20)
	if err := ws.Write(ctx, websocket.MessageText, text); err != nil {
		return 0, fmt.Errorf("%s: %w", c.target, errLost)
	}
	r := &remote{ws: ws, room: api.Window, took: make(chan struct{}, 1), output: newOutput()}
	talk, done := context.WithCancelCause(context.WithoutCancel(ctx))
	defer done(nil)
	go func() {
		if err := r.input(talk, s.In); err != nil {
			done(fmt.Errorf("read the command's standard input: %w; the command there was asked to end", err))
		}
	}()
	go r.pass(talk, s)
	written := make(chan struct{})
	go func() {
		defer close(written)
		if err := r.output.write(s, func(n int) { _ = r.say(talk, api.Control{Took: n}) }); err != nil {
			done(fmt.Errorf("write what the command wrote: %w", err))
		}
	}()
	code, err := r.hear(talk)
	r.output.end()
	<-written // all that came
	if cause := context.Cause(talk); cause != nil {
		err = cause
	}
	if err == nil {
		_ = ws.Close(websocket.StatusNormalClosure, "") // the agent first reads how much output was taken
	}
	if errors.Is(err, errLost) {
		err = fmt.Errorf("%s: %w", c.target, err)
	}
	return code, err
}

// remote is a command on another host.
type remote struct {
	ws *websocket.Conn

	mu   sync.Mutex
	room int // bytes of input that may be sent
	took chan struct{}

	output *output
}

func (r *remote) say(ctx context.Context, c api.Control) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return r.ws.Write(ctx, websocket.MessageText, text)
}

// input sends standard input, no more than the command has room for. The error says why it was cut short: the command there must not take a
// part of the input for all of it.
func (r *remote) input(ctx context.Context, in *os.File) error {
	p := make([]byte, 1+api.Chunk)
	p[0] = api.Stdin
	for {
		r.mu.Lock()
		room := r.room
		r.mu.Unlock()
		if room == 0 {
			select {
			case <-r.took:
			case <-ctx.Done():
				return nil
			}
			continue
		}
		n, err := in.Read(p[1:min(len(p), 1+room)])
		if n > 0 {
			r.mu.Lock()
			r.room -= n
			r.mu.Unlock()
			if r.ws.Write(ctx, websocket.MessageBinary, p[:1+n]) != nil {
				return nil //nolint:nilerr // hear says that the connection is lost
			}
		}
		if err != nil && !errors.Is(err, io.EOF) && !isDevice(in) {
			return err
		}
		if err != nil {
			_ = r.say(ctx, api.Control{EOF: true})
			return nil //nolint:nilerr // it has ended
		}
	}
}

// isDevice reports whether a file is a device. One that gives nothing has ended: nohup opens /dev/null for writing alone, and a terminal fails
// once its shell is gone.
func isDevice(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// pass sends signals and sizes.
func (r *remote) pass(ctx context.Context, s Streams) {
	for {
		var c api.Control
		select {
		case c.Signal = <-s.Signals:
		case size := <-s.Sizes:
			c.Rows, c.Columns = size[0], size[1]
		case <-ctx.Done():
			return
		}
		if r.say(ctx, c) != nil {
			return
		}
	}
}

// hear takes the agent's messages until the command has ended. It does not wait for the reader of the command's output: the agent sends
// no more than there is room for.
func (r *remote) hear(ctx context.Context) (int, error) {
	for {
		kind, msg, err := r.ws.Read(ctx)
		if err != nil {
			return 0, errLost
		}
		if kind == websocket.MessageBinary {
			if len(msg) > 0 {
				r.output.put(msg[0], msg[1:])
			}
			continue
		}
		var c api.Control
		if err := json.Unmarshal(msg, &c); err != nil {
			return 0, fmt.Errorf("read what the agent said: %w", err)
		}
		switch {
		case c.Problem != nil:
			return 0, refusal(*c.Problem)
		case c.Exit != nil:
			return *c.Exit, nil
		case c.Took > 0:
			r.mu.Lock()
			r.room += c.Took
			r.mu.Unlock()
			select {
			case r.took <- struct{}{}:
			default:
			}
		}
	}
}
