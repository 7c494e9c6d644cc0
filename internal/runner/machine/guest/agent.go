package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
	"berth/internal/sys/fork"
	"berth/internal/sys/proc"
	"berth/internal/sys/thread"
)

// The exit codes of a command that could not be run, as in shells.
const (
	cannotRun = 126
	notFound  = 127
)

// agent runs commands for the host.
type agent struct {
	port *os.File
	out  *wire.Writer

	mu       sync.Mutex
	channels map[uint32]*command
}

func newAgent(port *os.File) *agent {
	return &agent{port: port, out: wire.NewWriter(port), channels: map[uint32]*command{}}
}

// command is a command that runs.
type command struct {
	agent   *agent
	channel uint32
	pid     int
	stdin   stdin
	input   *wire.Receiver // writes to stdin
	outputs outputs
}

// patient reads the port: until the host has opened its end, the driver reports the end of the file.
type patient struct{ f *os.File }

func (p patient) Read(b []byte) (int, error) {
	for {
		n, err := p.f.Read(b)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// serve does what the host says.
func (a *agent) serve() error {
	if err := fork.Adopt(context.Background()); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	in := patient{a.port}
	for {
		f, err := wire.Read(in)
		if err != nil {
			return fmt.Errorf("read from the host: %w", err)
		}
		if err := a.take(f); err != nil {
			return err
		}
	}
}

func (a *agent) take(f wire.Frame) error {
	switch f.Kind {
	case wire.Begin:
		var s wire.Setup
		if err := f.Decode(&s); err != nil {
			return err
		}
		return a.begin(&s)
	case wire.Run:
		var c wire.Command
		if err := f.Decode(&c); err != nil {
			return err
		}
		a.start(f.Channel, &c)
		return nil
	}
	a.mu.Lock()
	c := a.channels[f.Channel]
	a.mu.Unlock()
	if f.Kind == wire.Signal && len(f.Payload) == 1 {
		heard := byte(0)
		if c != nil || f.Channel == 0 { // else the command has just ended: its signal is not for the init system
			heard = c.signal(unix.Signal(f.Payload[0]))
		}
		return a.out.Send(wire.Heard, f.Channel, []byte{heard})
	}
	if c == nil {
		return nil // it has just ended
	}
	switch f.Kind {
	case wire.Input:
		if len(f.Payload) == 0 {
			if _, is := c.stdin.(terminal); is { // its user has gone: it hangs up
				c.disconnect()
			}
			c.input.End()
			return nil
		}
		return c.input.Take(f.Payload)
	case wire.Grant:
		kind, n, err := f.Granted()
		if p := c.outputs.of(kind); err == nil && p != nil {
			return p.to.Grant(n)
		}
		return err
	case wire.Closed:
		if len(f.Payload) == 1 {
			if p := c.outputs.of(wire.Kind(f.Payload[0])); p != nil {
				p.close()
			}
		}
	case wire.Resize:
		size, err := f.Size()
		if t, is := c.stdin.(terminal); is && err == nil {
			t.resize(size)
		}
		return err
	}
	return nil
}

// begin makes the root and runs the node's own command.
func (a *agent) begin(s *wire.Setup) error {
	if err := makeRoot(s); err != nil {
		a.fail(0, &wire.Failure{Why: err.Error()})
		return nil //nolint:nilerr // the host is told
	}
	if !s.Init {
		a.start(0, &s.Command)
		return nil
	}
	a.fail(0, a.become(&s.Command))
	return nil
}

// become makes this process, process 1, the init system. The agent goes on as a child, which tells the host once this program is
// replaced: the pipe between both closes by that. It returns only if that cannot be.
func (a *agent) become(c *wire.Command) *wire.Failure {
	path, failure := find(c)
	if failure != nil {
		return failure
	}
	wrong := func(what string, err error) *wire.Failure { return &wire.Failure{Why: what + ": " + err.Error()} }
	self, err := os.Open("/proc/self/exe") // the RAM disk has no name any more
	if err != nil {
		return wrong("start the agent", err)
	}
	defer self.Close()
	replaced, still, err := os.Pipe()
	if err != nil {
		return wrong("start the agent", err)
	}
	defer still.Close()
	agent, err := fork.StartProcess(fmt.Sprintf("/proc/self/fd/%d", self.Fd()), []string{"berth-guest", agentWord}, &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, a.port, replaced},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	replaced.Close()
	if err != nil {
		return wrong("start the agent", err)
	}
	defer fork.Kill(agent) // before still is closed: it says nothing
	runtime.LockOSThread()
	if c.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return wrong("give up new privileges", err)
		}
	}
	if err := os.Chdir(folder(c)); err != nil {
		return &wire.Failure{Code: cannotRun, Why: err.Error()}
	}
	return &wire.Failure{Code: cannotRun, Why: reason(unix.Exec(path, c.Args, environment(c)))}
}

// beside is the agent beside an init system.
func beside() error {
	a := newAgent(inherited(portFD, "port"))
	replaced := inherited(replacedFD, "replaced")
	_, _ = replaced.Read(make([]byte, 1)) // it ends when process 1 has become the init system
	replaced.Close()
	if err := a.out.Send(wire.Started, 0, nil); err != nil {
		return err
	}
	return a.serve()
}

// inherited is a file that this process was started with. Commands do not inherit it in turn.
func inherited(fd int, name string) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}

func (a *agent) fail(channel uint32, f *wire.Failure) { _ = a.out.SendJSON(wire.Failed, channel, f) }

// find looks a command up as shells do, in the command's own PATH.
func find(c *wire.Command) (string, *wire.Failure) {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return "", &wire.Failure{Code: notFound, Why: "there is no command"}
	}
	cwd := folder(c)
	if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
		return "", &wire.Failure{Code: cannotRun, Why: "there is no folder " + cwd}
	}
	name := c.Args[0]
	var places []string
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(cwd, name)
		}
		places = []string{name}
	} else {
		path := os.Getenv("PATH")
		for _, e := range c.Env {
			if v, ok := strings.CutPrefix(e, "PATH="); ok {
				path = v
			}
		}
		for _, dir := range filepath.SplitList(path) {
			places = append(places, filepath.Join("/", dir, name))
		}
	}
	denied := ""
	for _, p := range places {
		info, err := os.Stat(p)
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			denied = err.Error()
		case err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0:
			return p, nil
		case err == nil:
			denied = "it is no program"
		}
	}
	if denied != "" {
		return "", &wire.Failure{Code: cannotRun, Why: denied}
	}
	return "", &wire.Failure{Code: notFound, Why: "not found"}
}

// start starts a command, and tells the host.
func (a *agent) start(channel uint32, want *wire.Command) {
	a.mu.Lock()
	taken := a.channels[channel] != nil
	a.mu.Unlock()
	if taken {
		a.fail(channel, &wire.Failure{Why: "the channel is in use"})
		return
	}
	cmd, failure := program(want)
	if failure != nil {
		a.fail(channel, failure)
		return
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: want.UID, Gid: want.GID, Groups: want.Groups}}
	c := &command{agent: a, channel: channel}
	theirs, err := c.connect(cmd, want)
	if err != nil {
		failure = &wire.Failure{Why: err.Error()}
	} else if err := startOnThread(cmd, want.NoNewPrivs); err != nil {
		failure = &wire.Failure{Code: cannotRun, Why: reason(err)}
	}
	for _, f := range theirs {
		f.Close()
	}
	if failure != nil {
		c.disconnect()
		a.fail(channel, failure)
		return
	}
	c.pid = cmd.Process.Pid
	c.input = wire.NewReceiver(a.out, channel, wire.Input, c.stdin, func() { c.stdin.Close() })
	a.mu.Lock()
	a.channels[channel] = c
	a.mu.Unlock()
	if a.out.Send(wire.Started, channel, nil) != nil {
		return
	}
	c.outputs.copy()
	go c.await(cmd, time.Duration(want.Timeout)*time.Millisecond)
}

// folder is the folder in which a command runs.
func folder(c *wire.Command) string { return filepath.Clean("/" + c.Cwd) }

// environment is the environment of a command: it has a PATH.
func environment(c *wire.Command) []string {
	if hasPath(c.Env) {
		return c.Env
	}
	return append(slices.Clone(c.Env), "PATH="+os.Getenv("PATH"))
}

func hasPath(env []string) bool {
	for _, e := range env {
		if strings.HasPrefix(e, "PATH=") {
			return true
		}
	}
	return false
}

// reason is what the kernel said, without Go's words around it.
func reason(err error) string {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e.Error()
	}
	return err.Error()
}

// startOnThread starts a command from a thread of its own, whose settings it inherits.
func startOnThread(cmd *exec.Cmd, noNewPrivs bool) error {
	return thread.Own(func() error {
		if noNewPrivs {
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				return err
			}
		}
		return fork.Start(cmd)
	})
}

// await waits for the end of the command and tells the host. With the node's own command all processes end, as in a container.
func (c *command) await(cmd *exec.Cmd, timeout time.Duration) {
	if timeout > 0 {
		t := time.AfterFunc(timeout, func() { c.signal(unix.SIGKILL) })
		defer t.Stop()
	}
	_ = fork.Wait(cmd)
	if c.channel == 0 && os.Getpid() == 1 {
		_ = unix.Kill(-1, unix.SIGKILL) // all but this one
		unix.Sync()                     // the emulator ends without asking the kernel
	}
	_ = c.stdin.SetWriteDeadline(past)
	c.input.End()
	c.input.Flush() // it says what was read
	c.outputs.drain()
	a := c.agent
	a.mu.Lock()
	delete(a.channels, c.channel)
	a.mu.Unlock()
	end := wire.End{Code: 255}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		if end.Code = ws.ExitStatus(); ws.Signaled() {
			end.Signal = int(ws.Signal())
		}
	}
	_ = a.out.SendJSON(wire.Ended, c.channel, end)
}

// signal sends the command a signal; SIGKILL goes to its whole process group. It returns 1 if the signal was sent. Without a command
// it is for the init system, process 1, and is sent only if that has a handler.
func (c *command) signal(s unix.Signal) byte {
	var err error
	switch {
	case c == nil:
		if os.Getpid() == 1 || !proc.Handles(1, s) {
			return 0
		}
		err = unix.Kill(1, s)
	case s == unix.SIGKILL:
		err = unix.Kill(-c.pid, s)
	default:
		err = unix.Kill(c.pid, s)
	}
	if err != nil {
		return 0
	}
	return 1
}
