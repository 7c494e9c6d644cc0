package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/thread"
)

// Process is a command that Exec started: a child of this process.
type Process struct {
	PID int

	pidfd   *os.File
	scratch *scratch
	command string
}

// Start has the runtime start the command, and returns when the runtime has ended. This process becomes a subreaper, so
// that the command becomes its child and it learns the exit code, whichever runtime it is.
//
// Errors: *CommandError if the command cannot run; an error that wraps EAGAIN if the node or the host cannot have one more
// process; else the runtime's own words.
func (e *Exec) Start(ctx context.Context) (_ *Process, err error) {
	of := func() (rights, error) { return rights{e.Process.Capabilities.Bounding, e.IDBase}, nil }
	if err := checkCommand(e.PID, e.Process.Args, e.Process.Env, e.Process.Cwd, of); err != nil {
		return nil, err
	}
	s, err := newScratch()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become a subreaper: %w", err)
	}
	cmd, err := e.prepare(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := thread.Own(func() error { return e.run(cmd) }); err != nil {
		endOrphans()
		return nil, e.explain(s, err)
	}
	p := &Process{scratch: s, command: e.Process.Args[0]}
	if p.PID, err = readPID(s.path("pid")); err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(p.PID, 0) // the PID is valid: only this process reaps it
	if err != nil {
		return nil, fmt.Errorf("open the command's process: %w", err)
	}
	p.pidfd = os.NewFile(uintptr(fd), "pidfd")
	return p, nil
}

// prepare prepares the call of the runtime. Except for the command's streams, all files that the runtime uses are in the
// scratch.
func (e *Exec) prepare(ctx context.Context, s *scratch) (*exec.Cmd, error) {
	process, err := json.Marshal(e.Process)
	if err != nil {
		return nil, fmt.Errorf("describe the command: %w", err)
	}
	for name, text := range map[string][]byte{"process": process, "log": nil} {
		if err := os.WriteFile(s.path(name), text, 0o600); err != nil {
			return nil, fmt.Errorf("describe the command: %w", err)
		}
	}
	args := []string{"--root", e.State, "--log", s.path("log"), "--log-format", "json"}
	if len(e.V1) > 0 {
		args = append(args, "--cgroup-manager=disabled")
	}
	args = append(args, "exec", "--detach", "--process", s.path("process"), "--pid-file", s.path("pid"))
	if e.Console != nil {
		if err := e.Console(s.path("tty")); err != nil {
			return nil, err
		}
		args = append(args, "--console-socket", s.path("tty"))
	}
	cmd := exec.CommandContext(ctx, e.Runtime.Path, append(args, e.ID)...)
	cmd.Env, cmd.Dir = []string{"PATH=" + defaultPath}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is Berth's to handle
	return cmd, e.stdio(cmd, s)
}

// stdio gives the command its streams. They belong to the command's user, so that the command can reopen /dev/stdout.
func (e *Exec) stdio(cmd *exec.Cmd, s *scratch) error {
	owner := int(e.IDBase + e.Process.User.UID)
	var null *os.File
	files := []*os.File{e.Stdin, e.Stdout, e.Stderr}
	for i, f := range files {
		if f != nil {
			if err := f.Chown(owner, owner); err != nil {
				return fmt.Errorf("give the command its streams: %w", err)
			}
			continue
		}
		if null == nil {
			var err error
			if null, err = makeNull(s.path("null"), owner); err != nil {
				return err
			}
		}
		files[i] = null
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	return nil
}

// run calls the runtime from the current OS thread, in the node's groups and with its I/O priority and OOM score.
func (e *Exec) run(cmd *exec.Cmd) (err error) {
	if e.Group != "" {
		group, err := os.Open(e.Group)
		if err != nil {
			return fmt.Errorf("open the node's v2 group: %w", err)
		}
		defer group.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	if idle, err := IOIdle(e.PID); err == nil && idle { // as the node's process 1
		if err := setIOIdle(0); err != nil {
			return err
		}
	}
	if err := resetSignals(); err != nil {
		return err
	}
	back, err := e.takeOOMScore()
	if err != nil {
		return err
	}
	leave, err := enterV1(e.V1)
	if err == nil {
		err = errors.Join(cmd.Start(), leave())
	}
	if err = errors.Join(err, back()); err != nil {
		return err
	}
	return cmd.Wait()
}

// endOrphans kills and reaps the processes that a failed runtime left behind. This process is their subreaper and has no
// other children. Without reaping they would count as processes of the node.
func endOrphans() {
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, task := range tasks {
		list, _ := os.ReadFile(task)
		for field := range strings.FieldsSeq(string(list)) {
			pid, err := strconv.Atoi(field)
			if err != nil || unix.Kill(pid, unix.SIGKILL) != nil {
				continue
			}
			for {
				if _, err := unix.Wait4(pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
					break
				}
			}
		}
	}
}

// takeOOMScore gives this process the node's OOM score while it forks, because crun sets the score only at create. back
// restores the own score.
func (e *Exec) takeOOMScore() (back func() error, err error) {
	const file = "/proc/self/oom_score_adj"
	if e.Process.OOMScoreAdj == nil {
		return func() error { return nil }, nil
	}
	own, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strconv.Itoa(*e.Process.OOMScoreAdj)), 0)
	}
	if err != nil {
		return nil, fmt.Errorf("take the node's standing when memory is short: %w", err)
	}
	return func() error { return os.WriteFile(file, own, 0) }, nil
}

// explain turns a failed call of the runtime into an error in its own words.
func (e *Exec) explain(s *scratch, err error) error {
	words := lastError(s.path("log"))
	if words == "" {
		return fmt.Errorf("run the command with %s: %w", e.Runtime.Name, err)
	}
	if ce := execFailure(e.Process.Args[0], words); ce != nil {
		return ce
	}
	return fmt.Errorf("run the command with %s: %w: %s", e.Runtime.Name, err, words)
}

// Signal sends the command a signal.
func (p *Process) Signal(s syscall.Signal) error {
	return unix.PidfdSendSignal(int(p.pidfd.Fd()), s, nil, 0)
}

// Wait waits for the command's end. The error is *CommandError if the kernel refused to run it, which happens after crun
// has ended.
func (p *Process) Wait() (unix.WaitStatus, error) {
	defer p.scratch.close()
	defer p.pidfd.Close()
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(p.PID, &ws, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return ws, fmt.Errorf("wait for the command: %w", err)
		}
		break
	}
	if words := lastError(p.scratch.path("log")); words != "" && ws.ExitStatus() != 0 {
		if ce := execFailure(p.command, words); ce != nil {
			return ws, ce
		}
		return ws, fmt.Errorf("run the command: %s", words)
	}
	return ws, nil
}
