package machine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/runner/machine/wire"
	"berth/internal/sys/refuse"
)

// controlSocket is the socket by which root reaches the monitor.
func controlSocket(dir string) string { return filepath.Join(dir, "machine.sock") }

// bootTime is how long a machine may take from its first instruction until its command runs.
const bootTime = 150 * time.Second

// still is how long a guest may come no nearer to the memory that it was asked to have, until it is not waited for any more.
const still = 10 * time.Second

// longestResize is how long a guest may take that comes nearer all the time.
const longestResize = 5 * time.Minute

// What the monitor is asked for.
const (
	doStart    = "start"    // boot and run the node's command
	doExec     = "exec"     // run one more command; its three streams come with the request
	doTerminal = "terminal" // the same on a terminal; its line comes twice with the request, and what has its sizes
	doCopy     = "copy"     // run the copier; its three streams come with the request, the third is its report
	doSignal   = "signal"   // send a signal: to the node's command, or to the one that this line has started
	doMemory   = "memory"   // say how much memory the guest has, after it was asked to have so much
)

// requestVersion is the version of requests and answers. The monitor is as old as its machine, and the program that asks may be newer.
const requestVersion = 1

// mostAnswer is the most bytes of an answer: the monitor reads what a guest says.
const mostAnswer = 128 << 10

// request is one line of JSON to the monitor.
type request struct {
	Version int           `json:"version"`
	Do      string        `json:"do"`
	Signal  int           `json:"signal,omitempty"`
	Memory  int64         `json:"memory,omitempty"` // in bytes; 0: what it has
	Command *wire.Command `json:"command,omitempty"`
	AsNode  bool          `json:"as_node,omitempty"` // the command runs as the node's own user
}

// answer is one line of JSON from the monitor.
type answer struct {
	Heard   bool          `json:"heard,omitempty"`
	Failure *wire.Failure `json:"failure,omitempty"`
	Gone    bool          `json:"gone,omitempty"` // the machine has ended
	End     *wire.End     `json:"end,omitempty"`
	Memory  int64         `json:"memory,omitempty"` // what the guest has, in bytes
}

// failure turns what the guest could not do into an error; command is what it was to run.
func (a *answer) failure(command string) error {
	switch {
	case a.Gone:
		return errGone
	case a.Failure == nil:
		return nil
	case a.Failure.Code != 0:
		return &runner.CommandError{Code: a.Failure.Code, Command: command, Why: a.Failure.Why}
	}
	return errors.New(a.Failure.Why)
}

// control is a line to a monitor.
type control struct {
	conn *net.UnixConn
	in   *bufio.Reader
}

// dial opens a line to the monitor of the node with this live folder. The path may be too long for a socket's name, which has 107
// bytes.
func dial(ctx context.Context, dir string) (*control, error) {
	d, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, refuse.NotFoundf("no running machine in %s", dir)
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", controlSocket(fmt.Sprintf("/proc/self/fd/%d", d.Fd())))
	if errors.Is(err, unix.ECONNREFUSED) { // its socket outlives it
		return nil, errGone
	}
	if err != nil {
		return nil, fmt.Errorf("reach the machine's monitor: %w", err)
	}
	return newControl(conn.(*net.UnixConn)), nil
}

func newControl(conn *net.UnixConn) *control {
	return &control{conn: conn, in: bufio.NewReaderSize(conn, mostAnswer)}
}

func (c *control) close() { c.conn.Close() }

// ask sends a request, with files, and waits for the answer, for so long.
func (c *control) ask(ctx context.Context, r *request, files []*os.File, within time.Duration) (*answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("the machine's monitor did not answer in %s", within))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Now()) })
	defer stop()
	if err := c.send(r, files); err != nil {
		return nil, err
	}
	a, err := c.next()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return a, err
}

// send sends a request. It waits only while the monitor has so many to read that the socket is full.
func (c *control) send(r *request, files []*os.File) error {
	r.Version = requestVersion
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(b) >= mostRequest {
		return fmt.Errorf("the command has %d bytes with its words and variables; a machine takes at most %d", len(b), wire.MostPayload)
	}
	fds, done := lend(files)
	defer done()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	b = append(b, '\n')
	n, _, err := c.conn.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = c.conn.Write(b[n:])
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return errGone
	}
	return err
}

// lend returns descriptors of files for the monitor. Pipes are opened anew for it, without blocking: a thread for each that it waits
// for would be one of the node's. The caller's own must stay as they are, and File.Fd would make them blocking.
func lend(files []*os.File) (fds []int, done func()) {
	var opened []int
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			continue // closed: the monitor refuses
		}
		_ = raw.Control(func(fd uintptr) {
			lent := int(fd)
			info, err := f.Stat()
			flags, flagsErr := unix.FcntlInt(fd, unix.F_GETFL, 0)
			if err == nil && flagsErr == nil && info.Mode()&os.ModeNamedPipe != 0 {
				at := fmt.Sprintf("/proc/self/fd/%d", fd)
				if own, err := unix.Open(at, flags&unix.O_ACCMODE|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil { // else its other end is closed
					lent, opened = own, append(opened, own)
				}
			}
			fds = append(fds, lent)
		})
	}
	return fds, func() {
		for _, fd := range opened {
			unix.Close(fd)
		}
	}
}

func (c *control) next() (*answer, error) {
	line, err := c.in.ReadSlice('\n')
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		return nil, errGone
	}
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, fmt.Errorf("an answer of more than %d bytes", mostAnswer)
	}
	if err != nil {
		return nil, err
	}
	a := &answer{}
	return a, json.Unmarshal(line, a)
}

// child is a command of exec. It implements runner.Child.
type child struct {
	c       *control
	command string
	mu      sync.Mutex
}

// execute runs one more command in the guest.
func execute(ctx context.Context, dir string, c runner.Command) (runner.Child, error) {
	want := &wire.Command{Args: c.Args, Env: c.Env, Cwd: c.Cwd, Timeout: c.Timeout.Milliseconds()}
	if c.User != nil {
		want.UID, want.GID, want.Groups = c.User.UID, c.User.GID, c.User.Additional
	}
	do, files := doExec, []*os.File{c.Stdin, c.Stdout, c.Stderr}
	if t := c.Terminal; t != nil {
		far, err := t.Remote()
		if err != nil {
			return nil, err
		}
		defer far.Close()
		want.Terminal = &wire.Size{Rows: t.Rows, Columns: t.Columns}
		do, files = doTerminal, []*os.File{far.Data, far.Data, far.Sizes}
	}
	return runIn(ctx, dir, &request{Do: do, Command: want, AsNode: c.User == nil}, files, c.Args[0])
}

// runIn has the monitor run a command with files; nil: a null device. name is the command's, for errors.
func runIn(ctx context.Context, dir string, r *request, files []*os.File, name string) (*child, error) {
	line, err := dial(ctx, dir)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		line.close()
		return nil, err
	}
	defer null.Close()
	for i, f := range files {
		if f == nil {
			files[i] = null
		}
	}
	a, err := line.ask(ctx, r, files, 2*answerTime)
	if err == nil {
		err = a.failure(name)
	}
	if err != nil {
		line.close()
		if _, cannot := errors.AsType[*runner.CommandError](err); !cannot {
			err = fmt.Errorf("run the command in the machine: %w", err)
		}
		return nil, err
	}
	return &child{c: line, command: name}, nil
}

// copyIn runs the copier in the guest until ctx ends. wait waits for its end.
func copyIn(ctx context.Context, dir string, words []string, in, out, report *os.File) (wait func() (unix.WaitStatus, error), err error) {
	want := &wire.Command{}
	for _, w := range words {
		want.Copier = append(want.Copier, []byte(w))
	}
	p, err := runIn(ctx, dir, &request{Do: doCopy, Command: want}, []*os.File{in, out, report}, "the copier")
	if cannot, is := errors.AsType[*runner.CommandError](err); is { // it is no command of the user's: its exit code is none of his
		return nil, errors.New(cannot.Error())
	}
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, p.c.close) // then the monitor kills it
	return func() (unix.WaitStatus, error) {
		defer stop()
		return p.Wait()
	}, nil
}

// Signal implements runner.Child.
func (p *child) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.c.send(&request{Do: doSignal, Signal: int(s)}, nil)
}

// Wait implements runner.Child. A command whose machine ended was killed.
func (p *child) Wait() (unix.WaitStatus, error) {
	defer p.c.close()
	a, err := p.c.next()
	if errors.Is(err, errGone) || err == nil && a.Gone {
		return unix.WaitStatus(unix.SIGKILL), nil
	}
	if err != nil {
		return 0, fmt.Errorf("wait for the command: %w", err)
	}
	if err := a.failure(p.command); err != nil {
		return 0, err
	}
	if a.End == nil {
		return 0, errors.New("wait for the command: the machine's monitor does not say how it ended")
	}
	if s := a.End.Signal; s > 0 && s <= 64 {
		return unix.WaitStatus(s), nil
	}
	return unix.WaitStatus(a.End.Code&0xff) << 8, nil
}
