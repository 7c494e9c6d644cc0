package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"berth/internal/site/api"
	"berth/internal/spec/roles"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// startPatience is how long a client may take to send its Start, once there is a websocket.
const startPatience = 10 * time.Second

// exec runs a command in a node: berth exec, as a child.
func (c *call) exec() (any, error) {
	name, err := c.name(roles.NodeExec)
	if err != nil {
		return nil, err
	}
	return nil, c.relay(func(s api.Start) ([]string, error) {
		if len(s.Args) == 0 || len(s.Files) > 0 {
			return nil, refuse.Invalidf("a command in a node has args, and no files")
		}
		args := []string{"exec"}
		if s.Terminals[api.Stdin] {
			args = append(args, "-t")
		}
		for _, f := range [][2]string{{"--user=", s.User}, {"--workdir=", s.Workdir}} {
			if f[1] != "" {
				args = append(args, f[0]+f[1])
			}
		}
		for _, e := range s.Env {
			if !strings.Contains(e, "=") {
				return nil, refuse.Invalidf("%q: want NAME=VALUE", e) // a name alone would take the agent's own variable
			}
			args = append(args, "--env="+e)
		}
		return append(append(args, name, "--"), s.Args...), nil
	})
}

// command runs a command line of berth.
func (c *call) command() (any, error) {
	if c.may(roles.CommandRead) != nil {
		return nil, c.may(roles.Command)
	}
	return nil, c.relay(func(s api.Start) ([]string, error) {
		if is, err := reads(s.Args); is && err == nil {
			c.line.Act = roles.CommandRead
		}
		return s.Args, c.mayRun(s)
	})
}

// relay makes a websocket of a request and runs the command that its client asks for.
func (c *call) relay(args func(api.Start) ([]string, error)) error {
	if !strings.EqualFold(c.Request.Header.Get("Upgrade"), webSocket) {
		c.Header().Set("Upgrade", webSocket)
		c.Header().Set("Connection", "Upgrade")
		return &statusError{http.StatusUpgradeRequired, refuse.Invalidf("%s is a websocket: berth --host and docs/api.md say how to speak with it", c.URL.Path)}
	}
	times := http.NewResponseController(c.ResponseWriter)
	_ = times.SetReadDeadline(time.Time{})
	_ = times.SetWriteDeadline(time.Time{})
	ws, err := websocket.Accept(c.ResponseWriter, c.Request, nil)
	if err != nil {
		return errAnswered // it has
	}
	defer func() { _ = ws.CloseNow() }()
	longest := int64(api.LongestStart)
	if c.may(roles.Command) != nil { // it brings no files
		longest = api.Chunk
	}
	ws.SetReadLimit(longest)
	s := newSession(ws)
	err = s.run(c, args)
	if err != nil {
		p := problemOf(err)
		ctx, cancel := context.WithTimeout(context.Background(), startPatience)
		_ = s.say(ctx, api.Control{Problem: &p}) // nothing was sent before it, or the client is gone
		cancel()
	}
	_ = ws.Close(websocket.StatusNormalClosure, "")
	if err != nil {
		return fmt.Errorf("%w: %w", errAnswered, err)
	}
	return nil
}

func (s *session) run(c *call, words func(api.Start) ([]string, error)) error {
	// The request's own context ends with the server; a client that leaves ends the reads from it.
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx()))
	defer cancel()
	starting, done := context.WithTimeout(ctx, startPatience)
	kind, text, err := s.ws.Read(starting)
	done()
	if err != nil {
		return refuse.Invalidf("read what is to run: %w", err)
	}
	s.ws.SetReadLimit(api.Chunk + 1024)
	var start api.Start
	if kind != websocket.MessageText {
		return refuse.Invalidf("the first message must be text: what is to run")
	}
	if err := json.Unmarshal(text, &start); err != nil {
		return refuse.Invalidf("what is to run: %s", jsonfile.Wrong(text, err))
	}
	c.line.Detail = fmt.Sprintf("%q", start.Args) // also if it is refused
	if err := jsonfile.CheckExact(text); err != nil {
		return refuse.Invalidf("what is to run: %w", err)
	}
	args, err := words(start)
	if err == nil {
		i := slices.IndexFunc(args, func(a string) bool { return strings.ContainsRune(a, 0) })
		if i >= 0 {
			err = refuse.Invalidf("argument %d holds a zero byte", i+1)
		}
	}
	if err != nil {
		return err
	}
	if err := c.begins(fmt.Sprintf("%q", args)); err != nil {
		return err
	}
	s.counts = start.Counts
	if s.child, err = run(c.server.Host.Program(), args, start); err != nil {
		return err
	}
	defer s.child.close()
	go func() {
		s.hear(ctx)
		s.lose()
		cancel() // sending to the client ends with it
	}()
	go s.feed(ctx)
	var out sync.WaitGroup
	for stream, f := range map[byte]*fileOf{api.Stdout: {s.child.out}, api.Stderr: {s.child.err}} {
		if f.File == nil && stream == api.Stdout {
			f.File = s.child.terminal
		}
		if f.File != nil {
			out.Go(func() { s.tell(ctx, stream, f) })
		}
	}
	over := make(chan struct{})
	go func() {
		<-s.child.ended
		out.Wait()
		close(over)
	}()
	lost := fmt.Errorf("the client of %q is gone", strings.Join(args, " "))
	select {
	case <-over:
	case <-s.lost:
		s.child.abandon()
		return lost
	}
	if s.say(ctx, api.Control{Exit: &s.child.code}) != nil || !s.taken() {
		return lost
	}
	c.line.Exit = &s.child.code
	return nil
}
