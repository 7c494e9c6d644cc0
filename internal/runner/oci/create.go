package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/runner/first"
	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

// Steps implements runner.Runner.
func (r Runtime) Steps(s runner.Spec) (runner.Steps, error) {
	spec, err := Config(s)
	if err != nil {
		return runner.Steps{}, err
	}
	spec.Process.Rlimits = withFiles(spec.Process.Rlimits)
	l := r.launch(s)
	return runner.Steps{
		Create: []step.Step{
			&Bundle{Dir: l.Bundle, Spec: spec},
			&Create{Launch: l, CgroupsPath: cgroupsPath(s.Groups), Stop: s.Stop},
		},
		Start: []step.Step{
			&Start{Launch: l, Args: s.Args, Env: s.Env, Cwd: s.Cwd, OOMScore: min(s.OOMScoreAdj, 0), IOIdle: s.IOIdle},
		},
	}, nil
}

// launch returns the launch of a node. crun on v1 starts in the existing groups and leaves them alone: by itself it refuses
// a hybrid hierarchy whose v2 tree has a controller, and resets v1's memory limit. Joining the groups afterwards would take
// longer than everything else.
func (r Runtime) launch(s runner.Spec) Launch {
	l := Launch{
		Runtime: r, State: s.State, ID: s.Node, Bundle: filepath.Join(s.Dir, "bundle"), PIDFile: s.PIDFile, Log: s.Log, Plan: s.Content,
		EnvFrom: s.EnvFrom,
	}
	if r.Name == crun && s.Groups.Host.Mode() != "v2" {
		l.Entry = s.Groups.Entry()
		if l.Entry.V2 != "" {
			l.Plan.Hide = []string{s.Groups.Host.V2}
		}
	}
	return l
}

// Create has the runtime create a node from its bundle: namespaces, mounts, limits, and an init that waits for
// [Start]. Links can be moved in when it is done.
type Create struct {
	Launch      Launch `json:"launch"`
	CgroupsPath string `json:"cgroups_path"` // as in the bundle: a process found in a pid file is the node's if it is in there

	Stop unix.Signal `json:"stop"` // asks the init to end
	Init proc.ID     `json:"init,omitzero"`

	session *runner.Session
}

// Attach implements runner.Attacher.
func (s *Create) Attach(to *runner.Session) {
	s.session = to
	s.Launch.Files, s.Launch.ConsoleSocket = to.Files, to.Console
}

// First implements runner.Holder.
func (s *Create) First() proc.ID { return s.Init }

// Layers implements runner.Holder.
func (s *Create) Layers() []string { return s.Launch.Plan.Root.Layers() }

// Runner implements runner.Holder.
func (s *Create) Runner() string { return s.Launch.Runtime.String() }

// StopSignal implements runner.Holder.
func (s *Create) StopSignal() unix.Signal { return s.Stop }

// Signal implements runner.Holder. The kernel does not deliver a signal for which the init of a PID namespace has no
// handler, apart from those that act without one.
func (s *Create) Signal(sig unix.Signal) (heard bool, err error) {
	acts := sig == unix.SIGKILL || sig == unix.SIGSTOP || sig == unix.SIGCONT
	if !acts && !proc.Handles(s.Init.PID, sig) {
		return false, nil
	}
	pidfd, err := s.Init.Open()
	if err != nil {
		return false, err
	}
	defer pidfd.Close()
	return true, proc.Signal(pidfd, sig)
}

// ExecProcesses implements runner.Holder. Where runc has too few for its threads, its Go runtime aborts with a page of
// registers: with room for 1 to 4 about every second time, for 5 twice in 60, for 6 and more never in 60 (runc 1.1.5).
func (s *Create) ExecProcesses() int {
	if s.Launch.Runtime.Name == crun {
		return 3
	}
	return 7
}

// Exec implements runner.Holder.
func (s *Create) Exec(ctx context.Context, c runner.Command) (runner.Child, error) {
	spec, err := readSpec(s.Launch.Bundle)
	if err != nil {
		return nil, err
	}
	l := &s.Launch
	e := execution{
		runtime: l.Runtime, state: l.State, id: l.ID, entry: l.Entry, ids: l.Plan.IDs, pid: s.Init.PID,
		process: execProcess(spec, c), wish: c,
	}
	p, err := e.start(ctx)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Kind implements step.Step.
func (s *Create) Kind() string { return "oci.create" }

func (s *Create) String() string {
	return fmt.Sprintf("%s create %s in %s; %s", s.Launch.Runtime.Name, s.Launch.ID, s.CgroupsPath, &s.Launch.Plan)
}

// Do implements step.Step.
func (s *Create) Do(ctx context.Context) error {
	if err := s.create(ctx); err != nil {
		return err
	}
	pid, err := first.ReadPID(s.Launch.PIDFile)
	if err == nil {
		s.Init, err = proc.Of(pid)
	}
	return err
}

// create carries the launch out: here, or in the process that the session names.
func (s *Create) create(ctx context.Context) error {
	if s.session == nil || s.session.Launch == nil {
		return s.Launch.Create(ctx)
	}
	input, err := jsonfile.Marshal(&s.Launch)
	if err != nil {
		return fmt.Errorf("describe the node's create: %w", err)
	}
	return s.session.Launch(ctx, &runner.Launch{Input: input, Files: s.Launch.Files})
}

// Verify implements step.Step.
func (s *Create) Verify(context.Context) error {
	return first.Verify(s.Init, s.CgroupsPath)
}

// Undo kills the node's init, and with it all that runs in the node's pid namespace, waits for their end, and removes
// what the runtime keeps of the node.
//
// It does not call the runtime: "delete --force" polls every 100 ms (runc), 3 ms go by for a plain delete, and what
// either would do is rmdir of the node's groups, which are Berth's own, and of the state's folder. So the folder
// alone is removed, which also copes with a half-written state. A runtime that was killed before it wrote the pid file
// may have left an init that waits for its parent, sees it gone and ends; the node's groups are killed anyway.
func (s *Create) Undo(ctx context.Context) error {
	if err := first.Kill(ctx, s.Init, s.Launch.PIDFile, s.CgroupsPath); err != nil {
		return err
	}
	fault.Point("init killed")
	l := &s.Launch
	if l.State == "" || l.ID == "" || strings.Contains(l.ID, "/") || strings.HasPrefix(l.ID, ".") {
		return fmt.Errorf("remove the runtime's state: no sound name %q in %q", l.ID, l.State)
	}
	if err := os.RemoveAll(filepath.Join(l.State, l.ID)); err != nil {
		return fmt.Errorf("remove the runtime's state: %w", err)
	}
	fault.Point("runtime's state removed")
	for _, p := range []string{l.PIDFile, l.Log} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what the runtime wrote: %w", err)
		}
	}
	return nil
}

// Start lets the created node's init become the node's command, and proves that it did.
type Start struct {
	Launch Launch `json:"launch"`
	PID    int    `json:"pid"` // of the node's init, or 0: read from Launch.PIDFile in Do

	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
	Cwd  string   `json:"cwd,omitempty"`

	OOMScore int  `json:"oom_score_adj,omitempty"` // below 0: how little the kernel shall like to kill it
	IOIdle   bool `json:"io_idle,omitempty"`       // its I/O requests wait until no other process has any

	// The executable of the init before it became the command.
	ExeDev uint64 `json:"exe_dev,omitempty"`
	ExeIno uint64 `json:"exe_ino,omitempty"`

	created func() error
}

// Attach implements runner.Attacher.
func (s *Start) Attach(to *runner.Session) { s.created = to.Created }

// Kind implements step.Step.
func (s *Start) Kind() string { return "oci.start" }

func (s *Start) String() string {
	text := fmt.Sprintf("%s start %s: %s", s.Launch.Runtime.Name, s.Launch.ID, runner.Quote(s.Args))
	if s.OOMScore < 0 {
		text += fmt.Sprintf(" (oom_score_adj %d)", s.OOMScore)
	}
	if s.IOIdle {
		text += " (I/O priority idle)"
	}
	return text
}

// Do implements step.Step. It first looks at the command in the node's own root: the runtimes' start succeeds also
// when the kernel then refuses to run the command. The error is *runner.CommandError if it cannot run.
func (s *Start) Do(ctx context.Context) error {
	if s.created != nil {
		if err := s.created(); err != nil {
			return err
		}
	}
	if s.PID == 0 {
		var err error
		if s.PID, err = first.ReadPID(s.Launch.PIDFile); err != nil {
			return err
		}
	}
	if err := checkCommand(s.PID, s.Args, s.Env, s.Cwd, s.Launch.rights); err != nil {
		return err
	}
	if s.OOMScore < 0 {
		if err := os.WriteFile(procPath(s.PID, "oom_score_adj"), []byte(strconv.Itoa(s.OOMScore)), 0); err != nil {
			return fmt.Errorf("protect the node when memory is short: %w", err)
		}
	}
	if s.IOIdle {
		if err := proc.SetIOIdle(s.PID); err != nil {
			return err
		}
	}
	var exe unix.Stat_t
	if err := unix.Stat(procPath(s.PID, "exe"), &exe); err != nil {
		return fmt.Errorf("find the node's init: %w", err)
	}
	s.ExeDev, s.ExeIno = exe.Dev, exe.Ino
	if err := s.Launch.start(ctx); err != nil {
		return s.Launch.explain("start", err)
	}
	fault.Point("runtime's start ended")
	return nil
}

// start lets the created init go on. All that crun's own start does is to write a byte into the pipe at which its init waits
// (libcrun/status.c, libcrun_status_write_exec_fifo: the same in all its versions), and to load itself for that takes 1.5 ms. Where
// there is no such pipe, or the runtime is another, the runtime is asked.
func (l *Launch) start(ctx context.Context) error {
	if l.Runtime.Name == crun {
		pipe := filepath.Join(l.State, l.ID, "exec.fifo")
		f, err := os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0) // ENXIO: the init does not wait any more
		if err == nil {
			defer f.Close()
			if err := os.Remove(pipe); err != nil { // crun takes a node with this pipe for one that is not started
				return err
			}
			fault.Point("crun's pipe removed")
			_, err = f.Write([]byte{0})
			return err
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fork.Run(l.command(ctx, "start", l.ID))
}

// Verify waits until the init's executable is no longer the runtime's, or it has ended. A command that ended at once is
// not an error here: that it can run at all was seen in Do, and the process that watches it learns how it ended.
func (s *Start) Verify(ctx context.Context) error { return waitExec(ctx, s.PID, s.ExeDev, s.ExeIno) }

// Undo implements step.Step: a started node ends with the undo of oci.create.
func (s *Start) Undo(context.Context) error { return nil }
