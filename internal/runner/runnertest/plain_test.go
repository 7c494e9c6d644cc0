package runnertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/runner"
	"berth/internal/sys/fork"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
	"berth/internal/sys/thread"
)

func TestPlain(t *testing.T) {
	Suite{Family: plainFamily{}, Runner: plain{}, Spec: func(_ *testing.T, dir, script string) runner.Spec {
		s := runner.Spec{Node: "plain", Hostname: "plain", Args: []string{"/bin/sh", "-c", script}, Env: os.Environ(), Stop: unix.SIGTERM}
		s.Content.Root.At = dir
		return s
	}}.Run(t)
}

// plain runs a node as a process of the host in groups of its own, without a container. It shows that nothing above a
// runner relies on containers.
type plain struct{}

func (plain) String() string { return "plain 1" }

func (plain) Steps(s runner.Spec) (runner.Steps, error) {
	if err := s.Check(); err != nil {
		return runner.Steps{}, err
	}
	c := &plainCreate{
		Args: s.Args, Env: s.Env, Gate: filepath.Join(s.Dir, "gate"), PIDFile: s.PIDFile, Entry: s.Groups.Entry(), Group: "/" + s.Groups.Path,
		Stop: s.Stop,
	}
	return runner.Steps{Create: []step.Step{c}, Start: []step.Step{&plainStart{Gate: c.Gate, PIDFile: c.PIDFile, Args: s.Args}}}, nil
}

type plainFamily struct{}

func (plainFamily) Kinds() step.Kinds {
	return step.Kinds{
		"plain.create": func() step.Step { return &plainCreate{} },
		"plain.start":  func() step.Step { return &plainStart{} },
	}
}

func (plainFamily) Remembered(runner.Trial) runner.Runner { return plain{} }

func (plainFamily) Choose(context.Context, runner.Trial) (runner.Runner, error) { return plain{}, nil }

func (plainFamily) Report(context.Context, runner.Trial) []host.Runtime {
	return []host.Runtime{{Name: "plain"}}
}

func (plainFamily) Create(ctx context.Context, l *runner.Launch) error {
	var c plainCreate
	if err := json.Unmarshal(l.Input, &c); err != nil {
		return err
	}
	c.files = l.Files
	return c.create(ctx)
}

// plainCreate makes a shell that waits at a named pipe and then becomes the command.
type plainCreate struct {
	Args    []string    `json:"args"`
	Env     []string    `json:"env"`
	Gate    string      `json:"gate"`
	PIDFile string      `json:"pid_file"`
	Entry   group.Entry `json:"entry"`
	Group   string      `json:"group"`
	Stop    unix.Signal `json:"stop"`
	ID      proc.ID     `json:"id,omitzero"`

	files  runner.Files
	launch func(context.Context, *runner.Launch) error
}

func (c *plainCreate) Kind() string            { return "plain.create" }
func (c *plainCreate) String() string          { return runner.Quote(c.Args) }
func (c *plainCreate) First() proc.ID          { return c.ID }
func (c *plainCreate) Layers() []string        { return nil }
func (c *plainCreate) Runner() string          { return plain{}.String() }
func (c *plainCreate) StopSignal() unix.Signal { return c.Stop }
func (c *plainCreate) ExecProcesses() int      { return 1 }

func (c *plainCreate) Attach(s *runner.Session) { c.files, c.launch = s.Files, s.Launch }

func (c *plainCreate) Do(ctx context.Context) error {
	create := c.create
	if c.launch != nil {
		input, err := json.Marshal(c)
		if err != nil {
			return err
		}
		create = func(ctx context.Context) error { return c.launch(ctx, &runner.Launch{Input: input, Files: c.files}) }
	}
	if err := create(ctx); err != nil {
		return err
	}
	pid, err := pidIn(c.PIDFile)
	if err == nil {
		c.ID, err = proc.Of(pid)
	}
	return err
}

func (c *plainCreate) create(ctx context.Context) error {
	if err := unix.Mkfifo(c.Gate, 0o600); err != nil {
		return err
	}
	// The shell that waits is an orphan: the subreaper above this process becomes its parent, as with OCI runtimes.
	const script = `exec 3<&0; (read -r go <"$1" || exit 1; shift 2; exec "$@" <&3 3<&-) & echo $! >"$2"`
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, "plain", c.Gate, c.PIDFile}, c.Args...)...)
	cmd.Env, cmd.SysProcAttr = c.Env, &syscall.SysProcAttr{Setsid: true}
	for _, f := range []struct {
		from *os.File
		to   func(*os.File)
	}{
		{c.files.Stdin, func(f *os.File) { cmd.Stdin = f }},
		{c.files.Stdout, func(f *os.File) { cmd.Stdout = f }},
		{c.files.Stderr, func(f *os.File) { cmd.Stderr = f }},
	} {
		if f.from != nil {
			f.to(f.from)
		}
	}
	return thread.Own(func() error {
		if err := startIn(c.Entry, cmd); err != nil {
			return err
		}
		return fork.Wait(cmd)
	})
}

func startIn(e group.Entry, cmd *exec.Cmd) error {
	gate, err := e.Open()
	if err != nil {
		return err
	}
	defer gate.Close()
	return gate.Start(cmd)
}

func (c *plainCreate) Verify(context.Context) error {
	if !c.ID.Alive() {
		return fmt.Errorf("process %d has ended", c.ID.PID)
	}
	return nil
}

func (c *plainCreate) Undo(ctx context.Context) error {
	id := c.ID
	if id.PID == 0 { // killed before it was journalled
		if pid, err := pidIn(c.PIDFile); err == nil {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
			if strings.Contains(string(text), c.Group+"\n") {
				id, _ = proc.Of(pid)
			}
		}
	}
	if pidfd, err := id.Open(); err == nil {
		defer pidfd.Close()
		if err := proc.Signal(pidfd, unix.SIGKILL); err != nil && !proc.Gone(err) {
			return err
		}
		if err := proc.Wait(ctx, pidfd); err != nil {
			return err
		}
	}
	for _, path := range []string{c.Gate, c.PIDFile} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (c *plainCreate) Signal(s unix.Signal) (heard bool, err error) {
	pidfd, err := c.ID.Open()
	if err != nil {
		return false, err
	}
	defer pidfd.Close()
	return true, proc.Signal(pidfd, s)
}

func (c *plainCreate) Exec(ctx context.Context, wish runner.Command) (runner.Child, error) {
	if _, err := exec.LookPath(wish.Args[0]); err != nil {
		return nil, &runner.CommandError{Code: runner.ExitNotFound, Command: wish.Args[0], Why: err.Error()}
	}
	cmd := exec.CommandContext(ctx, wish.Args[0], wish.Args[1:]...)
	cmd.Env, cmd.SysProcAttr = append(c.Env, wish.Env...), &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr = wish.Stdout, wish.Stderr
	if wish.Stdin != nil {
		cmd.Stdin = wish.Stdin
	}
	child := &plainChild{Cmd: cmd}
	err := thread.Own(func() error { return startIn(c.Entry, cmd) })
	if err == nil && wish.Timeout > 0 {
		child.timer = time.AfterFunc(wish.Timeout, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	}
	return child, err
}

type plainChild struct {
	*exec.Cmd
	timer *time.Timer
}

func (c *plainChild) Signal(s syscall.Signal) error { return c.Process.Signal(s) }

func (c *plainChild) Wait() (unix.WaitStatus, error) {
	err := fork.Wait(c.Cmd)
	if c.timer != nil {
		c.timer.Stop()
	}
	if _, ended := errors.AsType[*exec.ExitError](err); ended {
		err = nil
	}
	return unix.WaitStatus(c.ProcessState.Sys().(syscall.WaitStatus)), err
}

// plainStart opens the gate.
type plainStart struct {
	Gate    string   `json:"gate"`
	PIDFile string   `json:"pid_file"`
	Args    []string `json:"args"`

	created func() error
	waiting []byte // the command line of the shell
	pid     int
}

func (s *plainStart) Kind() string   { return "plain.start" }
func (s *plainStart) String() string { return runner.Quote(s.Args) }

func (s *plainStart) Attach(to *runner.Session) { s.created = to.Created }

func (s *plainStart) Do(ctx context.Context) (err error) {
	if s.created != nil {
		if err := s.created(); err != nil {
			return err
		}
	}
	if _, err := exec.LookPath(s.Args[0]); err != nil {
		return &runner.CommandError{Code: runner.ExitNotFound, Command: s.Args[0], Why: err.Error()}
	}
	if s.pid, err = pidIn(s.PIDFile); err == nil {
		s.waiting, err = os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.pid))
	}
	for ; err == nil; time.Sleep(time.Millisecond) {
		f, openErr := os.OpenFile(s.Gate, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if openErr == nil {
			_, err := f.WriteString("\n")
			return errors.Join(err, f.Close())
		}
		if !errors.Is(openErr, unix.ENXIO) { // ENXIO: the shell is not there yet
			return openErr
		}
		err = ctx.Err()
	}
	return err
}

// Verify waits until the shell has become the command, or has ended.
func (s *plainStart) Verify(ctx context.Context) error {
	for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
		if now, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.pid)); err != nil || string(now) != string(s.waiting) {
			return nil //nolint:nilerr // it has ended
		}
	}
	return ctx.Err()
}

func (s *plainStart) Undo(context.Context) error { return nil }

func pidIn(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
