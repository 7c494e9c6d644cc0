package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/runner/machine/wire"
)

// accept serves those who ask. Only root can connect.
func (r *relay) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			fmt.Fprintf(r.m.console, "berth: the machine's monitor can accept no line: %v\n", err)
			time.Sleep(time.Second) // out of descriptors
			continue
		}
		go r.serve(c)
	}
}

func (r *relay) serve(conn *net.UnixConn) {
	defer conn.Close()
	say := func(a *answer) {
		b, err := json.Marshal(a)
		if err == nil {
			_, _ = conn.Write(append(b, '\n'))
		}
	}
	line, files, err := receive(conn)
	var q request
	if err == nil {
		err = json.Unmarshal(line, &q)
	}
	switch {
	case err != nil:
		say(&answer{Failure: &wire.Failure{Why: "the machine's monitor cannot read the request: " + err.Error()}})
	case q.Version != requestVersion:
		say(&answer{Failure: &wire.Failure{Why: fmt.Sprintf("the machine was started by a berth of another version: berth restart %s", r.m.launch.Node)}})
	case q.Do == doStart:
		r.begin(say)
	case q.Do == doSignal:
		say(r.signal(0, q.Signal))
	case q.Do == doMemory:
		asks, done := whileOpen(conn)
		say(r.m.memory(asks, q.Memory))
		done()
	case q.Command != nil && len(files) == 3 && q.Do == doOf(q.Command):
		r.exec(conn, &q, files, say)
		return
	default:
		say(&answer{Failure: &wire.Failure{Why: fmt.Sprintf("the machine's monitor knows no request %q like that", q.Do)}})
	}
	closeAll(files)
}

// whileOpen returns a context that ends with who is at the other end of a line, which is not read by another.
func whileOpen(line io.Reader) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(context.Background())
	go func() {
		defer end()
		_, _ = io.Copy(io.Discard, line)
	}()
	return ctx, end
}

// doOf returns what is asked for with a command: a monitor that does not know it yet must not run it as another one.
func doOf(c *wire.Command) string {
	switch {
	case c.Terminal != nil:
		return doTerminal
	case c.Copier != nil:
		return doCopy
	}
	return doExec
}

// exec runs a command for somebody. If his line ends, the command is killed.
func (r *relay) exec(conn io.Reader, q *request, files []*os.File, say func(*answer)) {
	c, err := r.open(false, q.Command.Terminal != nil, files)
	if err != nil {
		closeAll(files)
		say(&answer{Failure: &wire.Failure{Why: err.Error()}})
		return
	}
	defer r.close(c)
	node := r.m.launch.Setup.Command
	want := *q.Command
	want.Env = runner.MergeEnv(node.Env, want.Env)
	if want.Terminal != nil {
		want.Env = runner.MergeEnv(terminalEnv, want.Env)
	}
	if want.Cwd == "" {
		want.Cwd = node.Cwd
	}
	if q.AsNode {
		want.UID, want.GID, want.Groups = node.UID, node.GID, node.Groups
	}
	want.NoNewPrivs, want.OneOutput = node.NoNewPrivs, c.oneOutput
	if err := r.out.SendJSON(wire.Run, c.number, &want); err != nil {
		say(r.silent(err.Error()))
		return
	}
	late, done := within(answerTime)
	defer done()
	a := r.start(late, c)
	say(a)
	if a.Gone {
		return
	}
	if a.Failure != nil {
		_, _ = r.send(c, int(unix.SIGKILL)) // the guest may start it later
		return
	}
	over, leave := context.WithCancel(context.Background())
	if want.Timeout > 0 { // the guest kills it when its time is over, unless it cannot or does not want to
		over, leave = within(time.Duration(want.Timeout)*time.Millisecond + overtime)
	}
	defer leave()
	go func() {
		defer leave()
		in := json.NewDecoder(io.LimitReader(conn, 1<<20))
		for {
			var q request
			if in.Decode(&q) != nil {
				return
			}
			if q.Do == doSignal {
				_, _ = r.send(c, q.Signal)
			}
		}
	}()
	e, ended := next(over, r, c.ended)
	switch {
	case ended:
		r.close(c) // all output first
		say(&answer{End: &e})
		return
	case over.Err() == nil:
		say(r.lost())
		return
	case errors.Is(over.Err(), context.DeadlineExceeded):
		say(&answer{End: &wire.End{Signal: int(unix.SIGKILL)}})
	}
	c.end() // the caller does not wait for the guest
	_, _ = r.send(c, int(unix.SIGKILL))
	late, done = within(answerTime)
	defer done()
	_, _ = next(late, r, c.ended)
}

// overtime is how much longer than its timeout a command may run until the monitor answers that it was killed.
const overtime = 5 * time.Second

// receive reads a request and the files that come with it, which no program inherits (the net package sees to that).
func receive(conn *net.UnixConn) (line []byte, files []*os.File, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(answerTime))
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }()
	b, oob := make([]byte, mostRequest), make([]byte, unix.CmsgSpace(3*4))
	n, oobn, _, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, nil, err
	}
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
		for _, m := range messages {
			if fds, err := unix.ParseUnixRights(&m); err == nil {
				for _, fd := range fds {
					files = append(files, os.NewFile(uintptr(fd), "stream"))
				}
			}
		}
	}
	for n == 0 || b[n-1] != '\n' {
		if n == len(b) {
			return nil, files, errors.New("a request that is too long")
		}
		more, err := conn.Read(b[n:])
		if err != nil {
			return nil, files, err
		}
		n += more
	}
	return b[:n], files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
