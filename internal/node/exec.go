package node

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/oci"
	"berth/internal/refuse"
	"berth/internal/relay"
)

// Exec runs one more command in a running node, with streams or a terminal of its own, and returns its exit code, 128 +
// the signal's number where a signal ended it.
func (b *Berth) Exec(ctx context.Context, name string, args []string, rio RunIO) (code int, err error) {
	s, err := b.stored(name)
	if err != nil {
		return 0, err
	}
	init, err := b.liveInit(name)
	if err != nil {
		return 0, refuse.Busyf("node %s does not run; berth start %s starts it", name, name)
	}
	spec, err := oci.ReadSpec(init.Launch.Bundle)
	if err != nil {
		return 0, err
	}
	e := oci.Exec{
		Runtime: init.Launch.Runtime, State: init.Launch.State, ID: name, PID: init.PID,
		Group: init.Launch.Group, V1: init.Launch.V1, IDBase: init.Launch.Plan.IDs.Base,
		Process: oci.ExecProcess(spec, oci.ExecOptions{Args: args, Terminal: rio.TTY, RLimits: s.Now.RLimits}),
	}
	if rio.TTY {
		code, err = b.execTerminal(ctx, &e, rio)
		return code, b.orFull(err, name, s.Now.PIDs)
	}
	streams, err := relay.Open(rio.In, rio.Out, rio.Err)
	if err != nil {
		return 0, err
	}
	defer func() {
		if lost := streams.Close(); lost != nil && err == nil {
			err = lost
		}
	}()
	e.Stdin, e.Stdout, e.Stderr = streams.In, streams.Out, streams.Err
	code, err = b.await(ctx, &e, streams.Started)
	return code, b.orFull(err, name, s.Now.PIDs)
}

// starting is about how many processes and threads a runtime needs for a moment to start a command.
const starting = 16

// orFull says that a node is at its limit of processes, where that may be why no command could be started in it.
func (b *Berth) orFull(err error, name string, limit int) error {
	if _, own := errors.AsType[*oci.CommandError](err); err == nil || own || limit == 0 {
		return err
	}
	cg, cgErr := b.cgroups()
	if cgErr != nil {
		return err
	}
	n := cgroup.Stats(cg, b.groupPath(name)).PIDs
	if n == nil || *n+starting <= int64(limit) {
		return err
	}
	return refuse.Busyf("node %s has %d of %d processes and threads (pids): no room for one more command; berth set %s pids=NUMBER gives it more: %w",
		name, *n, limit, name, err)
}

// execTerminal is Exec with a terminal.
func (b *Berth) execTerminal(ctx context.Context, e *oci.Exec, rio RunIO) (int, error) {
	if size, err := unix.IoctlGetWinsize(int(rio.In.Fd()), unix.TIOCGWINSZ); err == nil {
		e.Process.ConsoleSize = &specs.Box{Height: uint(size.Row), Width: uint(size.Col)}
	}
	var tty *relay.Terminal
	attached := make(chan error, 1)
	e.Console = func(path string) (err error) {
		if tty, err = relay.ListenTerminal(path); err == nil {
			go func() {
				err := tty.Attach(rio.In, rio.Out)
				if err != nil {
					tty.Abandon() // hangs the command up
				}
				attached <- err
			}()
		}
		return err
	}
	code, err := b.await(ctx, e, func() {})
	if tty == nil {
		return code, err
	}
	if err != nil {
		tty.Abandon() // ends the wait for a terminal that does not come
	}
	if failed := <-attached; err == nil && failed == nil {
		err = tty.Drain()
	} else if err == nil {
		err = failed
	}
	return code, errors.Join(err, tty.Close())
}

// await starts the command, passes on what signals this process gets, and waits for the command's end.
func (b *Berth) await(ctx context.Context, e *oci.Exec, started func()) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	defer signal.Stop(signals)
	p, err := e.Start(ctx)
	started()
	if err != nil {
		return 0, err
	}
	go func() {
		for s := range signals {
			_ = p.Signal(s.(syscall.Signal))
		}
	}()
	ws, err := p.Wait()
	return exitFrom(ws, true, false).Code, err
}
