package node

import (
	"context"

	"berth/internal/oci"
	"berth/internal/refuse"
)

// Exec replaces this process by a command in a running node, so that terminal, signals and exit code are the
// command's own. It returns only if it failed.
func (b *Berth) Exec(_ context.Context, name string, args []string, tty bool) error {
	s, err := b.stored(name)
	if err != nil {
		return err
	}
	init, err := b.liveInit(name)
	if err != nil {
		return refuse.Busyf("node %s does not run; berth start %s starts it", name, name)
	}
	spec, err := oci.ReadSpec(init.Launch.Bundle)
	if err != nil {
		return err
	}
	e := oci.Exec{
		Runtime: init.Launch.Runtime, State: init.Launch.State, ID: name, PID: init.PID,
		Group: init.Launch.Group, V1: init.Launch.V1,
		Process: oci.ExecProcess(spec, oci.ExecOptions{Args: args, Terminal: tty, RLimits: s.Now.RLimits}),
	}
	return e.Replace()
}
