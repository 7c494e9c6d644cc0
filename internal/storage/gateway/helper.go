package gateway

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

// Helper is a step that leaves a process running on the host, which serves the mount as long as the node runs.
//
// Do starts the process and fills in its identity, which the journal keeps. If the process ends before the node does, the step is
// done again (step.Journal.Redo): Do first removes the leftovers of the ended process, then starts another one. A Do that fails
// leaves no process. Undo ends the process and returns when it has ended.
//
// A process that was started and is not in the journal yet, because the starter was killed, must end by itself, or Undo must
// find it by something that is not reused. One that is in the node's group (group.StartHelper) ends with the group at the latest.
type Helper interface {
	step.Step
	// Process returns the identity of the process; the zero value before Do.
	Process() proc.ID
}

// Helpers returns the steps that leave a process running.
func Helpers(steps []step.Step) []Helper {
	var all []Helper
	for _, s := range steps {
		if h, ok := s.(Helper); ok {
			all = append(all, h)
		}
	}
	return all
}

// A helper is replaced at once when it ends. Only if that fails, or if the new one ends soon, the next try waits.
const (
	firstWait   = time.Second
	longestWait = time.Minute
)

// Watch waits for the end of a helper and replaces it, again and again until ctx ends. replace is told which process ended and
// returns the one in its place. tell is told of each end, and of the error if the helper was not replaced.
func Watch(ctx context.Context, helper proc.ID, replace func(context.Context, proc.ID) (proc.ID, error), tell func(ended proc.ID, err error)) {
	wait := time.Duration(0)
	for {
		since := time.Now()
		if err := awaitEnd(ctx, helper); err != nil {
			return
		}
		if time.Since(since) > longestWait {
			wait = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		next, err := replace(ctx, helper)
		if ctx.Err() != nil {
			return
		}
		tell(helper, err)
		if err == nil {
			helper = next
		}
		wait = min(max(2*wait, firstWait), longestWait)
	}
}

// awaitEnd waits until a process has ended; the error is that of ctx.
func awaitEnd(ctx context.Context, id proc.ID) error {
	pidfd, err := id.Open()
	if errors.Is(err, unix.ESRCH) {
		return ctx.Err()
	}
	if err != nil { // out of descriptors: look again later
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(firstWait):
		}
		if !id.Alive() {
			return ctx.Err()
		}
		return awaitEnd(ctx, id)
	}
	defer pidfd.Close()
	return proc.Wait(ctx, pidfd)
}
