// Package foreground runs a process of a node in the foreground, for the user who started it: it passes signals on, carries
// a terminal, and waits for the end.
package foreground

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/node/history"
	"berth/internal/runner"
	"berth/internal/runner/streams"
	"berth/internal/sys/proc"
)

// Await waits for the end of a node's first process and passes on the signals that this process gets. A second SIGINT or
// SIGTERM, or a first one that the process would not notice, kills it: Ctrl-C always ends the node. killed is called then.
func Await(init runner.Holder, pidfd *os.File, signals <-chan os.Signal, killed func()) {
	done := make(chan struct{})
	go func() {
		_ = proc.Wait(context.Background(), pidfd)
		close(done)
	}()
	asked := false
	for {
		select {
		case sig := <-signals:
			s := sig.(syscall.Signal)
			ends := s == unix.SIGINT || s == unix.SIGTERM || s == unix.SIGHUP || s == unix.SIGQUIT
			heard := false
			if !ends || !asked {
				heard, _ = init.Signal(s)
			}
			if ends && !heard {
				_, _ = init.Signal(unix.SIGKILL)
				killed()
			}
			asked = asked || ends
		case <-done:
			return
		}
	}
}

// Finish waits until the output of the command is written out. A signal that ends programs ends the wait, because the command
// for which it could be has ended.
func Finish(s *streams.Streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	defer stop()
	return s.Close(ctx)
}

// ExecTerminal is Exec with the terminal in and out.
func ExecTerminal(ctx context.Context, init runner.Holder, cmd runner.Command, in, out *os.File) (int, error) {
	var tty *streams.Terminal
	remote := false // it is attached before the command has started
	attached := make(chan error, 1)
	attach := func(how func(in, out *os.File) error) {
		err := how(in, out)
		if err != nil {
			tty.Abandon() // hangs the command up
		}
		attached <- err
	}
	cmd.Terminal = &runner.Terminal{
		Listen: func(path string) (err error) {
			if tty, err = streams.ListenTerminal(path); err == nil {
				go attach(tty.Attach)
			}
			return err
		},
		Remote: func() (far streams.Remote, err error) {
			if tty, far, err = streams.OpenRemote(); err == nil {
				attach(tty.Begin)
				remote = true
			}
			return far, err
		},
	}
	if size, err := unix.IoctlGetWinsize(int(in.Fd()), unix.TIOCGWINSZ); err == nil {
		cmd.Terminal.Rows, cmd.Terminal.Columns = size.Row, size.Col
	}
	code, err := Exec(ctx, init, cmd, func() {
		if remote {
			tty.TakeKeys()
		}
	})
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

// startHangs is how long the start of a command may take after a signal, before it is given up.
const startHangs = 5 * time.Second

// Starting returns a context for the moment in which a command begins to run. A signal that ends ctx is then for the command,
// whose first output the user may have seen already. A start that hangs is given up a while after it.
func Starting(ctx context.Context) (context.Context, context.CancelFunc) {
	starting, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() { time.AfterFunc(startHangs, giveUp) })
	return starting, func() { forget(); giveUp() }
}

// Exec starts one more command in a node, passes on the signals that this process gets, and returns the command's exit code.
// started is called when its streams are the command's. A signal that comes while the command is started is passed on as soon as
// it runs.
func Exec(ctx context.Context, init runner.Holder, cmd runner.Command, started func()) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	defer signal.Stop(signals)
	starting, done := Starting(ctx)
	defer done()
	p, err := init.Exec(starting, cmd)
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
	return history.ExitOf(ws, true, false).Code, err
}

// OpenNull opens /dev/null for each file that is nil, and returns the files that it opened.
func OpenNull(files ...**os.File) (opened []*os.File, err error) {
	for _, f := range files {
		if *f != nil {
			continue
		}
		if *f, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
			return opened, err
		}
		opened = append(opened, *f)
	}
	return opened, nil
}
