// Package runner defines what runs a node's first process, and what it promises: an OCI runtime (package oci), or an emulator (package machine).
//
// A [Family] knows the runners of one kind on this host and chooses one. A [Runner] turns a [Spec] into steps. One of the
// steps makes the node's first process and is its [Holder]: from the journal it still knows which process that is.
//
// # What callers may assume
//
//   - Create ends with a first process that exists and has run none of its command. Its id is in Spec.PIDFile. Its
//     namespaces can be changed, and its groups limited, before Start.
//   - Start ends when the process runs the command, or has ended. A command that cannot run is a [CommandError].
//   - All processes of the node are in Spec.Groups before their first instruction, also those of Exec.
//   - The record of a step in the journal is enough to find the process, to run a command beside it, and to undo the step.
//   - Undo ends the first process and leaves no file, wherever the step was killed. It never touches another process that got
//     the same id. What else runs in the node, the caller kills by its groups, before or after.
//   - The process that carries a create out becomes the parent of the first process, and so learns how it ended, if it
//     is a subreaper.
//
// # What an implementation must do
//
// It passes the conformance suite of package runnertest.
package runner

import (
	"context"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

// Runner starts nodes in one way: an OCI runtime, for example.
type Runner interface {
	// String returns the name and the version: "crun 1.8.1".
	String() string
	// Steps returns the steps that make a node run. It is pure. It refuses a spec that is not valid.
	Steps(s Spec) (Steps, error)
}

// Steps are a runner's steps for one node, in two phases. Steps that need the node's namespaces, or must act before its
// command runs, come between them.
type Steps struct {
	Create []step.Step // make the first process, which waits. One of them is a Holder
	Start  []step.Step // let it run the command
}

// Family is the runners of one kind on this host.
type Family interface {
	// Kinds returns the constructors of the steps, by kind, for reading journals.
	Kinds() step.Kinds
	// Remembered returns the runner that Choose chose, or nil if it must choose again. It is quick: it starts no process.
	Remembered(t Trial) Runner
	// Choose tries the runners of this host, remembers the best one, and returns it. It refuses (Cannot) if none works.
	Choose(ctx context.Context, t Trial) (Runner, error)
	// Report describes each runner, also one that is not installed.
	Report(ctx context.Context, t Trial) []host.Runtime
	// Create carries a launch out that a step of this family handed to Session.Launch, perhaps in another process.
	Create(ctx context.Context, l *Launch) error
}

// Holder is the step that makes a node's first process. Its methods work on a step that was read from a journal.
type Holder interface {
	step.Step
	// First returns the node's first process; the zero value if Do did not make it.
	First() proc.ID
	// Layers returns the layers of its root: the folders of its image, or the digest of a packed one.
	Layers() []string
	// Runner returns the name of the runner of the node, as Runner.String does.
	Runner() string
	// StopSignal returns the signal that asks the first process to end.
	StopSignal() unix.Signal
	// Signal sends the first process a signal. heard is false, and nothing is sent, if the process would not notice it.
	Signal(s unix.Signal) (heard bool, err error)
	// ExecProcesses returns how many processes the start of a command needs in the node's groups, at least.
	ExecProcesses() int
	// Exec runs one more command in the node, and returns when it has started. The command is a child of this process,
	// which becomes a subreaper. Errors: *CommandError if the command cannot run; an error that wraps EAGAIN if the node
	// or the host cannot have one more process.
	Exec(ctx context.Context, c Command) (Child, error)
}

// Copier is a Holder whose files this host's kernel does not have.
type Copier interface {
	// Copy runs Berth's copier (package copier) where the node's files are, until ctx ends. words are its own; in and out are pipes,
	// or nil for a null device. wait waits for its end. What comes of it is the node's to say.
	Copy(ctx context.Context, words []string, in, out, report *os.File) (wait func() (unix.WaitStatus, error), err error)
}

// Resizer is a Holder of a node with memory of its own, as a machine has: it can change while the node runs.
type Resizer interface {
	Holder
	// AtBoot returns how many bytes of memory the node has had when it started: it cannot have more.
	AtBoot() int64
	// Memory returns how many bytes it has now.
	Memory(ctx context.Context) (int64, error)
	// Resize returns the step that gives it so many bytes, where it has others. It refuses what cannot be.
	Resize(from, to int64) (step.Step, error)
}

// Child is a command that Exec started.
type Child interface {
	Signal(s syscall.Signal) error
	// Wait waits for the end of the command. The error is *CommandError if it could not run after all.
	Wait() (unix.WaitStatus, error)
}

// FirstProcess returns the step among steps that made the node's first process; nil if there is none.
func FirstProcess(steps []step.Step) Holder {
	i := slices.IndexFunc(steps, func(s step.Step) bool { _, ok := s.(Holder); return ok })
	if i < 0 {
		return nil
	}
	return steps[i].(Holder)
}
