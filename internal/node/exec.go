package node

import (
	"context"
	"errors"
	"fmt"
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
	if err := b.room(name, s.Now.PIDs, init.Launch.Runtime.Name); err != nil {
		return 0, err
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
	e.Stdin, e.Stdout, e.Stderr = streams.In, streams.Out, streams.Err
	code, err = b.await(ctx, &e, streams.Started)
	lost := finish(streams)
	if err == nil {
		return code, lost
	}
	return code, b.orFull(err, name, s.Now.PIDs)
}

// finish waits until what the command wrote is written out. A signal that ends programs ends the wait: now there is no
// command that it could be for.
func finish(s *relay.Streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	defer stop()
	return s.Close(ctx)
}

// The runtimes need this many processes in the node's group for a moment to start a command, runc at least; and what
// either may need at most. runc ends with its Go runtime's own words where it has too few.
const (
	crunStarts, runcStarts = 3, 1
	mostStarts             = 16
)

// room refuses to start a command in a node whose limit of processes leaves no room for it.
func (b *Berth) room(name string, limit int, runtime string) error {
	need := runcStarts
	if runtime == "crun" {
		need = crunStarts
	}
	return b.full(name, limit, need, nil)
}

// orFull says that a node is at its limit of processes, where that may be why no command could be started in it.
func (b *Berth) orFull(err error, name string, limit int) error {
	if _, own := errors.AsType[*oci.CommandError](err); err == nil || own || refuse.KindOf(err) != refuse.Failed {
		return err
	}
	if full := b.full(name, limit, mostStarts, err); full != nil {
		return full
	}
	return err
}

// full is an error if a node has no room for so many more processes and threads.
func (b *Berth) full(name string, limit, need int, because error) error {
	if limit == 0 {
		return nil
	}
	cg, err := b.mounted()
	if err != nil {
		return err
	}
	n := cgroup.Stats(cg, b.groupPath(name)).PIDs
	if n == nil || *n+int64(need) <= int64(limit) {
		return nil
	}
	text := fmt.Sprintf("node %s has %d of %d processes and threads (pids): no room for one more command; berth set %s pids=NUMBER gives it more", name, *n, limit, name)
	if because != nil {
		return refuse.Busyf("%s: %w", text, because)
	}
	return refuse.Busyf("%s", text)
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
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				_ = p.Signal(s.(syscall.Signal))
			case <-ended:
				return
			}
		}
	}()
	ws, err := p.Wait()
	close(ended)
	return exitFrom(ws, true, false).Code, err
}
