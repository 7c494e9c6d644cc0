package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/refuse"
	"berth/internal/relay"
	"berth/internal/vnode"
)

const defaultGrace = 10 * time.Second

// RunIO is what a foreground node reads and writes.
type RunIO struct {
	In, Out, Err *os.File
	TTY          bool
}

// Run makes a throw-away node, runs its command in the foreground and removes it. It returns the command's exit code,
// 128 + the signal's number where a signal ended it. If this process is killed, the keeper removes the node.
func (b *Berth) Run(ctx context.Context, n *vnode.Node, rio RunIO) (code int, err error) {
	streams := &relay.Streams{}
	if !rio.TTY {
		if streams, err = relay.Open(rio.In, rio.Out, rio.Err); err != nil {
			return 0, err
		}
	}
	defer func() { // after the node is gone: the reader of its output may take his time
		if lost := finish(streams); err == nil {
			err = lost
		}
	}()
	// Orphans of the runtime, the node's init first of all, become this process's children: that is how it knows
	// the exit code.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become a subreaper: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)

	guarded := make(chan error, 1)
	var guard *net.UnixConn
	go func() {
		c, err := b.guard(ctx, n.Name)
		guard = c
		guarded <- err
	}()
	start, _ := startTime(os.Getpid())
	s := starter{
		streams: streams, foreground: &holder{os.Getpid(), start}, forRun: true,
	}
	var tty *relay.Terminal
	s.before = func() error {
		if err := <-guarded; err != nil || tty == nil {
			return err
		}
		return tty.Attach(rio.In, rio.Out) // so that the command finds the terminal in its size
	}
	if rio.TTY {
		s.listen = func(path string) (err error) {
			tty, err = relay.ListenTerminal(path)
			return err
		}
		defer func() {
			if tty != nil {
				_ = tty.Close()
			}
		}()
	}
	l, err := b.lock(ctx, n.Name)
	if err != nil {
		return 0, err
	}
	js, pidfd, err := b.runUp(ctx, l, n, s)
	if err != nil {
		l.remove()
		return 0, err
	}
	l.release()
	streams.Started()
	defer pidfd.Close()
	ws := b.awaitForeground(createStep(js.live).PID, pidfd, signals)
	var lost error
	if tty != nil {
		lost = tty.Drain()
	}
	code = exitFrom(ws, true, false).Code
	// The node is removed whatever became of the context: Ctrl-C was for the command.
	clean := context.WithoutCancel(ctx)
	if l, err = b.lock(clean, n.Name); err != nil {
		return code, err
	}
	oom := b.oomKilled(n.Name)
	if err := b.remove(clean, n.Name, js); err != nil {
		l.release()
		return code, err
	}
	l.remove()
	if guard != nil {
		guard.Close()
	}
	lost = errors.Join(lost, finish(streams)) // what the node wrote stands before what Berth says of it
	if oom {
		fmt.Fprintf(rio.Err, "berth: node %s: the kernel killed processes for lack of memory\n", n.Name)
	}
	return code, lost
}

// runUp creates the node and opens its init.
func (b *Berth) runUp(ctx context.Context, l *lock, n *vnode.Node, s starter) (journals, *os.File, error) {
	if err := b.settle(ctx, n.Name); err != nil {
		return journals{}, nil, err
	}
	if _, err := b.stored(n.Name); err == nil {
		return journals{}, nil, refuse.Busyf("node %s exists already", n.Name)
	}
	js, err := b.create(ctx, l, n, s)
	if err != nil {
		return journals{}, nil, err
	}
	if slices.ContainsFunc(n.Network, func(nw vnode.Network) bool { return nw.DHCP }) { // the keeper keeps its leases
		if err := b.watch(ctx, n.Name); err != nil {
			return js, nil, err
		}
	}
	init := createStep(js.live)
	pidfd, err := openInit(init.PID, init.StartTime)
	return js, pidfd, err
}

// guard makes the keeper remove the node if this process dies: it sees the connection close.
func (b *Berth) guard(ctx context.Context, name string) (*net.UnixConn, error) {
	for tries := 0; ; tries++ {
		c, err := b.dialKeeper(ctx)
		if err != nil {
			return nil, err
		}
		_, err = askOn(ctx, c, request{Do: "guard", Node: name})
		if err == nil {
			go b.keepGuard(ctx, c, name)
			return c, nil
		}
		c.Close()
		if again := errors.Is(err, errUnread) || errors.Is(err, errKilled); !again || ctx.Err() != nil || tries == 10 {
			return nil, err
		}
		time.Sleep(time.Duration(tries) * 20 * time.Millisecond) // on a busy host a keeper takes a while to end
	}
}

// keepGuard starts the keeper again when it was killed.
func (b *Berth) keepGuard(ctx context.Context, c *net.UnixConn, name string) {
	var r reply
	_, err := receive(c, &r)
	if errors.Is(err, net.ErrClosed) && isClosed(c) || ctx.Err() != nil {
		return
	}
	_, _ = b.guard(ctx, name)
}

func isClosed(c *net.UnixConn) bool {
	return errors.Is(c.SetDeadline(time.Time{}), net.ErrClosed)
}

// awaitForeground waits for the init's end, passing on what signals this process gets. A second SIGINT or SIGTERM, or
// a first one that the init has no handler for, kills the node: Ctrl-C always ends it.
func (b *Berth) awaitForeground(pid int, pidfd *os.File, signals <-chan os.Signal) unix.WaitStatus {
	done := make(chan struct{})
	go func() {
		waitPidfd(pidfd, -1)
		close(done)
	}()
	asked := false
	for {
		select {
		case sig := <-signals:
			s := sig.(syscall.Signal)
			ends := s == unix.SIGINT || s == unix.SIGTERM || s == unix.SIGHUP || s == unix.SIGQUIT
			if ends && (asked || !handles(pid, s)) {
				s = unix.SIGKILL
			}
			asked = asked || ends
			_ = unix.PidfdSendSignal(int(pidfd.Fd()), s, nil, 0)
		case <-done:
			var ws unix.WaitStatus
			for {
				_, err := unix.Wait4(pid, &ws, 0, nil)
				if err == nil {
					return ws
				}
				if !errors.Is(err, unix.EINTR) {
					known, _ := reapedExit(pidfd)
					return known
				}
			}
		}
	}
}
