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

	"berth/internal/step"
)

// Create has the runtime create a node from its bundle: namespaces, mounts, limits, and an init that waits for
// [Start]. Links can be moved in when it is done.
type Create struct {
	Launch      Launch `json:"launch"`
	CgroupsPath string `json:"cgroups_path"` // as in the bundle: a process found in a pid file is the node's if it is in there

	PID       int    `json:"pid,omitempty"`        // the node's init, on the host
	StartTime uint64 `json:"start_time,omitempty"` // its start time, in clock ticks since boot

	// Start carries the launch out; nil: Launch.Create in this process. The keeper's client goes here.
	Start func(context.Context, *Launch) error `json:"-"`
}

// Kind implements step.Step.
func (s *Create) Kind() string { return "oci.create" }

func (s *Create) String() string {
	return fmt.Sprintf("%s create %s in %s; %s", s.Launch.Runtime.Name, s.Launch.ID, s.CgroupsPath, &s.Launch.Plan)
}

// Do implements step.Step.
func (s *Create) Do(ctx context.Context) error {
	by := s.Start
	if by == nil {
		by = func(ctx context.Context, l *Launch) error { return l.Create(ctx) }
	}
	if err := by(ctx, &s.Launch); err != nil {
		return err
	}
	var err error
	if s.PID, err = readPID(s.Launch.PIDFile); err != nil {
		return err
	}
	_, s.StartTime, err = stat(s.PID)
	return err
}

// Verify implements step.Step.
func (s *Create) Verify(context.Context) error {
	state, started, err := stat(s.PID)
	switch {
	case err != nil:
		return fmt.Errorf("find the node's init: %w", err)
	case started != s.StartTime || state == 'Z':
		return fmt.Errorf("find the node's init: process %d has ended", s.PID)
	}
	in, err := inGroup(s.PID, s.CgroupsPath)
	if err == nil && !in {
		err = fmt.Errorf("the node's init, process %d, is not in the group %s", s.PID, s.CgroupsPath)
	}
	return err
}

// Undo kills the node's init, and with it all that runs in the node's pid namespace, waits for their end, and removes
// what the runtime keeps of the node.
//
// It does not call the runtime: "delete --force" polls every 100 ms (runc), 3 ms go by for a plain delete, and what
// either would do is rmdir of the node's groups, which are Berth's own, and of the state's folder. So the folder
// alone is removed, which also copes with a half-written state. A runtime that was killed before it wrote the pid file
// may have left an init that waits for its parent, sees it gone and ends; the node's groups are killed anyway.
func (s *Create) Undo(ctx context.Context) error {
	if err := s.kill(ctx); err != nil {
		return err
	}
	step.Fault("init killed")
	l := &s.Launch
	if l.State == "" || l.ID == "" || strings.Contains(l.ID, "/") || strings.HasPrefix(l.ID, ".") {
		return fmt.Errorf("remove the runtime's state: no sound name %q in %q", l.ID, l.State)
	}
	if err := os.RemoveAll(filepath.Join(l.State, l.ID)); err != nil {
		return fmt.Errorf("remove the runtime's state: %w", err)
	}
	step.Fault("runtime's state removed")
	for _, p := range []string{l.PIDFile, l.Log} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what the runtime wrote: %w", err)
		}
	}
	return nil
}

func (s *Create) kill(ctx context.Context) error {
	if s.PID != 0 {
		return killAndWait(ctx, s.PID, func() (bool, error) {
			_, started, err := stat(s.PID)
			return started == s.StartTime, err
		})
	}
	// Killed before it was journalled: the pid file may name it, or be cut off, or be old.
	pid, err := readPID(s.Launch.PIDFile)
	if err != nil {
		return nil //nolint:nilerr // no pid file, no init that is known; the groups are killed in any case
	}
	return killAndWait(ctx, pid, func() (bool, error) { return inGroup(pid, s.CgroupsPath) })
}

// Start lets the created node's init become the node's command, and proves that it did.
type Start struct {
	Launch Launch `json:"launch"`
	PID    int    `json:"pid"` // of the node's init, or 0: read from Launch.PIDFile in Do

	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
	Cwd  string   `json:"cwd,omitempty"`

	OOMScore int  `json:"oom_score_adj,omitempty"` // below 0: how little the kernel shall like to kill it
	IOIdle   bool `json:"io_idle,omitempty"`       // its requests wait until nobody else has any

	// The executable of the init before it became the command.
	ExeDev uint64 `json:"exe_dev,omitempty"`
	ExeIno uint64 `json:"exe_ino,omitempty"`
}

// Kind implements step.Step.
func (s *Start) Kind() string { return "oci.start" }

func (s *Start) String() string {
	text := fmt.Sprintf("%s start %s: %s", s.Launch.Runtime.Name, s.Launch.ID, Quote(s.Args))
	if s.OOMScore < 0 {
		text += fmt.Sprintf(" (oom_score_adj %d)", s.OOMScore)
	}
	if s.IOIdle {
		text += " (I/O priority idle)"
	}
	return text
}

// Do implements step.Step. It first looks at the command in the node's own root: the runtimes' start succeeds also
// when the kernel then refuses to run the command. The error is *CommandError if it cannot run.
func (s *Start) Do(ctx context.Context) error {
	if s.PID == 0 {
		var err error
		if s.PID, err = readPID(s.Launch.PIDFile); err != nil {
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
		if err := setIOIdle(s.PID); err != nil {
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
	step.Fault("runtime's start ended")
	return nil
}

// start lets the created init go on. All that crun's own start does is to write a byte into the pipe at which its init waits
// (libcrun/status.c, libcrun_status_write_exec_fifo: the same in all its versions), and to load itself for that takes 1.5 ms. Where
// there is no such pipe, or the runtime is another, the runtime is asked.
func (l *Launch) start(ctx context.Context) error {
	if l.Runtime.Name == "crun" {
		pipe := filepath.Join(l.State, l.ID, "exec.fifo")
		f, err := os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0) // ENXIO: nobody waits any more
		if err == nil {
			defer f.Close()
			if err := os.Remove(pipe); err != nil { // crun takes a node with this pipe for one that is not started
				return err
			}
			step.Fault("crun's pipe removed")
			_, err = f.Write([]byte{0})
			return err
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return l.command(ctx, "start", l.ID).Run()
}

// Verify waits until the init's executable is no longer the runtime's, or it has ended. A command that ended at once is
// not an error here: that it can run at all was seen in Do, and how it ended is for whoever watches it.
func (s *Start) Verify(ctx context.Context) error { return waitExec(ctx, s.PID, s.ExeDev, s.ExeIno) }

// Undo implements step.Step: a started node ends with the undo of oci.create.
func (s *Start) Undo(context.Context) error { return nil }
