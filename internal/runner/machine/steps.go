package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/runner"
	"berth/internal/runner/first"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/proc"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Create makes the machine: its monitor, and QEMU with all that it needs, which waits before the guest's first instruction.
type Create struct {
	Emulator string      `json:"emulator"`
	Node     string      `json:"node"`
	Dir      string      `json:"dir"` // the node's live folder
	PIDFile  string      `json:"pid_file"`
	Group    string      `json:"group"` // a process found in a pid file is the node's if it is in there
	Stop     unix.Signal `json:"stop"`  // asks the guest's command to end
	Image    []string    `json:"image"` // the digest of the image
	Machine  string      `json:"machine"`
	Booted   int64       `json:"booted,omitempty"` // the memory that it boots with, in bytes; 0: it has no balloon, an older berth made it
	Init     proc.ID     `json:"init,omitzero"`    // the monitor

	launch  *Launch
	session *runner.Session
}

// Attach implements runner.Attacher.
func (s *Create) Attach(to *runner.Session) { s.session = to }

// First implements runner.Holder.
func (s *Create) First() proc.ID { return s.Init }

// Layers implements runner.Holder.
func (s *Create) Layers() []string { return s.Image }

// Runner implements runner.Holder.
func (s *Create) Runner() string { return s.Emulator }

// StopSignal implements runner.Holder.
func (s *Create) StopSignal() unix.Signal { return s.Stop }

// ExecProcesses implements runner.Holder: a command of exec is a process of the guest's.
func (s *Create) ExecProcesses() int { return 0 }

// Kind implements step.Step.
func (s *Create) Kind() string { return "machine.create" }

func (s *Create) String() string {
	return fmt.Sprintf("machine %s by %s: %s", s.Node, s.Emulator, s.Machine)
}

// Do implements step.Step.
func (s *Create) Do(ctx context.Context) error {
	if err := s.create(ctx); err != nil {
		return err
	}
	pid, err := first.ReadPID(s.PIDFile)
	if err == nil {
		s.Init, err = proc.Of(pid)
	}
	return err
}

// create carries the launch out: here, or in the process that the session names.
func (s *Create) create(ctx context.Context) error {
	if s.session != nil {
		s.launch.Files, s.launch.Console = s.session.Files, s.session.Console
	}
	if s.session == nil || s.session.Launch == nil {
		return s.launch.Create(ctx)
	}
	input, err := jsonfile.Marshal(s.launch)
	if err != nil {
		return fmt.Errorf("describe the machine: %w", err)
	}
	return s.session.Launch(ctx, &runner.Launch{Family: Name, Input: input, Files: s.launch.Files})
}

// Verify implements step.Step.
func (s *Create) Verify(context.Context) error { return first.Verify(s.Init, s.Group) }

// Undo kills the monitor, and with it all that is in its pid namespace, and removes its files.
func (s *Create) Undo(ctx context.Context) error {
	if err := first.Kill(ctx, s.Init, s.PIDFile, s.Group); err != nil {
		return err
	}
	fault.Point("machine killed")
	for _, p := range []string{s.PIDFile, controlSocket(s.Dir)} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what the machine's monitor made: %w", err)
		}
	}
	return nil
}

// Start lets the guest boot and run the node's command.
type Start struct {
	Dir  string   `json:"dir"`
	Args []string `json:"args"`

	created func() error
}

// Attach implements runner.Attacher.
func (s *Start) Attach(to *runner.Session) { s.created = to.Created }

// Kind implements step.Step.
func (s *Start) Kind() string { return "machine.start" }

func (s *Start) String() string { return "boot the machine: " + runner.Quote(s.Args) }

// Do returns when the guest runs the command. The error is *runner.CommandError if it cannot.
func (s *Start) Do(ctx context.Context) error {
	if s.created != nil {
		if err := s.created(); err != nil {
			return err
		}
	}
	c, err := dial(ctx, s.Dir)
	if err != nil {
		return err
	}
	defer c.close()
	a, err := c.ask(ctx, &request{Do: doStart}, nil, bootTime+time.Minute)
	if err != nil {
		return fmt.Errorf("boot the machine: %w", err)
	}
	fault.Point("machine booted")
	return a.failure(s.Args[0])
}

// Verify implements step.Step: Do has the guest's word, which is the only one.
func (s *Start) Verify(context.Context) error { return nil }

// Undo implements step.Step: a started machine ends with the undo of machine.create.
func (s *Start) Undo(context.Context) error { return nil }

// Signal implements runner.Holder. SIGKILL ends the machine. The monitor of a paused one cannot answer: it finds the signal once it
// goes on.
func (s *Create) Signal(sig unix.Signal) (heard bool, err error) {
	if sig == unix.SIGKILL {
		pidfd, err := s.Init.Open()
		if err != nil {
			return false, err
		}
		defer pidfd.Close()
		return true, proc.Signal(pidfd, sig)
	}
	ctx := context.Background()
	c, err := dial(ctx, s.Dir)
	if err != nil {
		return false, err
	}
	defer c.close()
	q := &request{Do: doSignal, Signal: int(sig)}
	if s.paused() {
		return true, c.send(q, nil)
	}
	a, err := c.ask(ctx, q, nil, 2*hearTime)
	if err != nil {
		return false, fmt.Errorf("signal the machine's command: %w", err)
	}
	return a.Heard, a.failure("")
}

// paused reports whether the machine is paused, and with it its monitor.
func (s *Create) paused() bool {
	cg, err := host.ReadMounted()
	return err == nil && group.Frozen(cg, strings.TrimPrefix(s.Group, "/"))
}

// Exec implements runner.Holder.
func (s *Create) Exec(ctx context.Context, c runner.Command) (runner.Child, error) {
	return execute(ctx, s.Dir, c)
}

// Copy implements runner.Copier.
func (s *Create) Copy(ctx context.Context, words []string, in, out, report *os.File) (wait func() (unix.WaitStatus, error), err error) {
	return copyIn(ctx, s.Dir, words, in, out, report)
}

// AtBoot implements runner.Resizer.
func (s *Create) AtBoot() int64 { return s.Booted }

// Resize implements runner.Resizer.
func (s *Create) Resize(from, to int64) (step.Step, error) {
	r := &Resize{Limit: proof.Limit{Key: string(proof.MachineMemory), Asked: vnode.Bytes(to).String(), By: balloon}, Dir: s.Dir, From: from, To: to}
	switch {
	case s.Booted == 0:
		return nil, refuse.Cannotf("berth restart "+s.Node, "%s: the machine was started by an older berth, without a balloon", r.Key)
	case to > s.Booted:
		return nil, refuse.Cannotf("berth stop "+s.Node+", set it, and start it again", "%s %s: the machine booted with %s, and cannot have more until it boots again",
			r.Key, r.Asked, vnode.Bytes(s.Booted))
	case s.paused():
		return nil, refuse.Busyf("%s: node %s is paused: berth unpause %s", r.Key, s.Node, s.Node)
	}
	return r, nil
}

// Memory implements runner.Resizer.
func (s *Create) Memory(ctx context.Context) (int64, error) {
	if s.paused() {
		return 0, errors.New("it is paused")
	}
	return askMemory(ctx, s.Dir, 0, quitTime)
}
