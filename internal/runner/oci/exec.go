package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/host/group"
	"berth/internal/runner"
	"berth/internal/storage/mounts"
	"berth/internal/sys/fork"
	"berth/internal/sys/inherit"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
)

// execution is one more command in a running node. It has the capabilities, seccomp filter, no-new-privileges flag, limits
// and groups of the node's process 1.
type execution struct {
	runtime Runtime
	state   string // the runtime's --root
	id      string // the node's name
	entry   group.Entry
	ids     mounts.IDs
	pid     int // the node's init
	process *specs.Process
	wish    runner.Command
}

// execProcess returns the process of one more command, based on the node's own specification.
func execProcess(spec *specs.Spec, c runner.Command) *specs.Process {
	p := *spec.Process
	p.Args, p.Terminal = c.Args, c.Terminal != nil
	p.Env = runner.MergeEnv(p.Env, c.Env)
	p.Cwd = cmp.Or(c.Cwd, p.Cwd)
	if limits, err := rlimits(c.RLimits); err == nil && limits != nil { // the spec was valid when it was stored
		p.Rlimits = limits
	}
	p.Rlimits = withFiles(p.Rlimits)
	if c.User != nil {
		p.User = specs.User{UID: c.User.UID, GID: c.User.GID, AdditionalGids: c.User.Additional}
	}
	if t := c.Terminal; t != nil {
		p.Env = runner.MergeEnv([]string{"TERM=xterm"}, p.Env)
		if t.Rows > 0 {
			p.ConsoleSize = &specs.Box{Height: uint(t.Rows), Width: uint(t.Columns)}
		}
	}
	return &p
}

// child is a command that was started: a child of this process.
type child struct {
	pid     int
	pidfd   *os.File
	scratch *scratch
	command string
	timer   *time.Timer // kills it; nil without a timeout
}

// start has the runtime start the command, and returns when the runtime has ended. This process becomes a subreaper, so
// that the command becomes its child and it learns the exit code, whichever runtime it is.
func (e *execution) start(ctx context.Context) (_ *child, err error) {
	if err := inherit.Free(); err != nil {
		return nil, err
	}
	of := func() (rights, error) { return rights{e.process.Capabilities.Bounding, e.ids.Base}, nil }
	if err := checkCommand(e.pid, e.process.Args, e.process.Env, e.process.Cwd, of); err != nil {
		return nil, err
	}
	process, err := jsonfile.Marshal(e.process)
	if err != nil {
		return nil, fmt.Errorf("describe the command: %w", err)
	}
	s, err := newScratch(len(process))
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
	cmd, err := e.prepare(ctx, s, process)
	if err != nil {
		return nil, err
	}
	others := children()
	if err := thread.Own(func() error { return e.run(cmd) }); err != nil {
		endOrphans()
		return nil, e.explain(s, err)
	}
	// The runtime writes no file with the command's PID: where this process is killed before it does, it could not, and would end the command.
	p := &child{scratch: s, command: e.process.Args[0]}
	mine := slices.DeleteFunc(children(), func(pid int) bool { return slices.Contains(others, pid) })
	if len(mine) != 1 {
		return nil, fmt.Errorf("find the command's process: this one has %d new children, not 1", len(mine))
	}
	p.pid = mine[0]
	fd, err := unix.PidfdOpen(p.pid, 0) // the PID is valid: only this process reaps it
	if err != nil {
		return nil, fmt.Errorf("open the command's process: %w", err)
	}
	p.pidfd = os.NewFile(uintptr(fd), "pidfd")
	if e.wish.Timeout > 0 {
		p.timer = time.AfterFunc(e.wish.Timeout, p.killGroup)
	}
	return p, nil
}

// prepare prepares the call of the runtime. Except for the command's streams, all files that the runtime uses are in the
// scratch. process describes the command, as the runtime reads it.
func (e *execution) prepare(ctx context.Context, s *scratch, process []byte) (*exec.Cmd, error) {
	for name, text := range map[string][]byte{"process": process, "log": nil} {
		if err := os.WriteFile(s.path(name), text, 0o600); err != nil {
			return nil, fmt.Errorf("describe the command: %w", err)
		}
	}
	args := []string{"--root", e.state, "--log", s.path("log"), "--log-format", "json"}
	if len(e.entry.V1) > 0 {
		args = append(args, "--cgroup-manager=disabled")
	}
	args = append(args, "exec", "--detach", "--process", s.path("process"))
	if t := e.wish.Terminal; t != nil {
		if err := t.Listen(s.path("tty")); err != nil {
			return nil, err
		}
		args = append(args, "--console-socket", s.path("tty"))
	}
	cmd := exec.CommandContext(ctx, e.runtime.Path, append(args, e.id)...)
	cmd.Env, cmd.Dir = []string{"PATH=" + defaultPath}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is Berth's to handle
	return cmd, e.stdio(cmd, s)
}

// stdio gives the command its streams. They belong to the command's user, so that the command can reopen /dev/stdout.
func (e *execution) stdio(cmd *exec.Cmd, s *scratch) error {
	uid, ok := e.ids.User(e.process.User.UID)
	if !ok {
		return refuse.Invalidf("the node has no user %d", e.process.User.UID)
	}
	owner := int(uid)
	var null *os.File
	files := []*os.File{e.wish.Stdin, e.wish.Stdout, e.wish.Stderr}
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
func (e *execution) run(cmd *exec.Cmd) (err error) {
	gate, err := e.entry.Open()
	if err != nil {
		return err
	}
	defer gate.Close()
	if idle, err := proc.IOIdle(e.pid); err == nil && idle { // as the node's process 1
		if err := proc.SetIOIdle(0); err != nil {
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
	if err := errors.Join(gate.Start(cmd), back()); err != nil {
		return err
	}
	return fork.Wait(cmd)
}

// endOrphans kills and reaps the processes that a failed runtime left behind. This process is their subreaper and has no
// other children. Without reaping they would count as processes of the node.
func endOrphans() {
	for _, pid := range children() {
		if unix.Kill(pid, unix.SIGKILL) == nil {
			_, _ = proc.Reap(pid)
		}
	}
}

// children returns the children of this process, those of all its threads, also ones that have ended and were not reaped.
func children() (pids []int) {
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, task := range tasks {
		list, _ := os.ReadFile(task)
		for field := range strings.FieldsSeq(string(list)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// takeOOMScore gives this process the node's OOM score while it forks, because crun sets the score only at create. back
// restores the own score.
func (e *execution) takeOOMScore() (back func() error, err error) {
	const file = "/proc/self/oom_score_adj"
	if e.process.OOMScoreAdj == nil {
		return func() error { return nil }, nil
	}
	own, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strconv.Itoa(*e.process.OOMScoreAdj)), 0)
	}
	if err != nil {
		return nil, fmt.Errorf("take the node's standing when memory is short: %w", err)
	}
	return func() error { return os.WriteFile(file, own, 0) }, nil
}

// explain turns a failed call of the runtime into an error in its own words.
func (e *execution) explain(s *scratch, err error) error {
	words := lastError(s.path("log"))
	if words == "" {
		return fmt.Errorf("run the command with %s: %w", e.runtime.Name, err)
	}
	if ce := execFailure(e.process.Args[0], words); ce != nil {
		return ce
	}
	return fmt.Errorf("run the command with %s: %w: %s", e.runtime.Name, err, words)
}

// Signal implements runner.Child.
func (p *child) Signal(s syscall.Signal) error { return proc.Signal(p.pidfd, s) }

// killGroup kills the command and its process group. That is one of its own, or the one that was made for the runtime, never
// this process's.
func (p *child) killGroup() {
	if pgid, err := unix.Getpgid(p.pid); err == nil && pgid > 1 && pgid != unix.Getpgrp() && proc.Signal(p.pidfd, 0) == nil {
		_ = unix.Kill(-pgid, unix.SIGKILL)
	}
	_ = proc.Signal(p.pidfd, unix.SIGKILL)
}

// Wait implements runner.Child. The kernel may refuse to run the command after crun has ended.
func (p *child) Wait() (unix.WaitStatus, error) {
	defer p.scratch.close()
	defer p.pidfd.Close()
	ws, err := proc.Reap(p.pid)
	if p.timer != nil {
		p.timer.Stop()
	}
	if err != nil {
		return ws, fmt.Errorf("wait for the command: %w", err)
	}
	if words := lastError(p.scratch.path("log")); words != "" && ws.ExitStatus() != 0 {
		if ce := execFailure(p.command, words); ce != nil {
			return ws, ce
		}
		return ws, fmt.Errorf("run the command: %s", words)
	}
	return ws, nil
}
