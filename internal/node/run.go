package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/counters"
	"berth/internal/host/group"
	"berth/internal/image"
	"berth/internal/node/foreground"
	"berth/internal/node/history"
	"berth/internal/node/keeper"
	"berth/internal/runner"
	"berth/internal/runner/streams"
	"berth/internal/spec/envfile"
	"berth/internal/spec/vnode"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// RunIO has the files that a foreground node reads and writes.
type RunIO struct {
	In, Out, Err *os.File
	TTY          bool
	Keep         bool // the node stays when its command has ended: Run only
}

// Run makes a throw-away node, runs its command in the foreground and removes it. It returns the command's exit code,
// 128 + the signal's number where a signal ended it. If this process is killed, the keeper removes the node. A node that is
// to stay is the keeper's from the start, as one of Apply: if this process is killed, it runs on without its streams.
func (b *Berth) Run(ctx context.Context, n *vnode.Node, rio RunIO) (code int, err error) {
	stdio := &streams.Streams{}
	if rio.TTY {
		err = b.Layout.FitsSocket(b.Layout.Node(n.Name).TTY())
	} else {
		stdio, err = streams.Open(rio.In, rio.Out, rio.Err)
	}
	if err != nil {
		return 0, err
	}
	defer func() { // after the node is gone: the reader of its output may be slow
		if lost := foreground.Finish(stdio); err == nil {
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
	var guard *keeper.Guard
	self, err := proc.Self()
	if err != nil {
		return 0, err
	}
	s := starter{streams: stdio, owner: &self, forRun: true}
	if rio.Keep {
		s = starter{streams: stdio, start: b.launcher(n.Name)}
		guarded <- nil
	} else {
		go func() {
			c, err := b.keeper().Guard(ctx, n.Name)
			guard = c
			guarded <- err
		}()
	}
	var tty *streams.Terminal
	s.before = func() error {
		if err := <-guarded; err != nil || tty == nil {
			return err
		}
		return tty.Begin(rio.In, rio.Out) // so that the command finds the terminal in its size
	}
	if rio.TTY {
		s.listen = func(path string) (err error) {
			tty, err = streams.ListenTerminal(path)
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
	l.release()
	if err != nil {
		return 0, err
	}
	stdio.Started()
	if tty != nil {
		tty.TakeKeys()
	}
	defer pidfd.Close()
	init := runner.FirstProcess(js.live.Steps())
	if pidfd != nil {
		ended := group.LiftOnEnd(init.First(), func() { b.lift(n.Name) })
		foreground.Await(init, pidfd, signals, func() { _ = b.thawGroup(n.Name) })
		ended()
	}
	var lost error
	if tty != nil {
		lost = tty.Drain()
	}
	// The end is noted, or the node removed, also if the context has ended: Ctrl-C was for the command.
	clean := context.WithoutCancel(ctx)
	var end *history.Exit
	if rio.Keep {
		end, err = b.endOf(clean, n.Name, init.First())
	} else {
		end, err = b.endForeground(clean, n.Name, js, pidfd)
	}
	if err != nil {
		return end.Code, err
	}
	if guard != nil {
		guard.Close()
	}
	lost = errors.Join(lost, foreground.Finish(stdio)) // the node's output comes before Berth's messages about it
	if end.OOM {
		fmt.Fprintf(rio.Err, "berth: node %s: the kernel killed processes for lack of memory\n", n.Name)
	}
	return end.Code, lost
}

// endForeground removes a node whose first process, a child of this process, has ended.
func (b *Berth) endForeground(ctx context.Context, name string, js journals, pidfd *os.File) (*history.Exit, error) {
	ws, err := proc.Reap(runner.FirstProcess(js.live.Steps()).First().PID)
	if err != nil {
		ws, _ = proc.ReapedExit(pidfd)
	}
	end := history.ExitOf(ws, true, false)
	l, err := b.lock(ctx, name)
	if err != nil {
		return end, err
	}
	defer l.release()
	end.OOM = b.oomKilled(name)
	b.noteEnd(js, end)
	return end, b.remove(ctx, name, js)
}

// runUp creates the node and opens its init; nil if that is the keeper's and has ended already.
func (b *Berth) runUp(ctx context.Context, l *lock, n *vnode.Node, s starter) (journals, *os.File, error) {
	if err := b.settle(ctx, n.Name); err != nil {
		return journals{}, nil, err
	}
	if _, err := b.Stored(n.Name); err == nil {
		return journals{}, nil, refuse.Busyf("node %s exists already", n.Name)
	}
	js, err := b.create(ctx, l, n, s)
	if err != nil {
		return journals{}, nil, err
	}
	ctx, done := foreground.Starting(ctx)
	defer done()
	// The keeper waits for its end, or keeps its leases.
	if s.start != nil || slices.ContainsFunc(n.Network, func(nw vnode.Network) bool { return nw.DHCP }) {
		if err := b.keeper().Watch(ctx, n.Name); err != nil {
			return js, nil, err
		}
	}
	pidfd, err := runner.FirstProcess(js.live.Steps()).First().Open()
	if s.start != nil && proc.Gone(err) { // its command ended at once, and the keeper knows how
		return js, nil, nil
	}
	return js, pidfd, err
}

// Create makes a node that is not there and starts it.
func (b *Berth) Create(ctx context.Context, n *vnode.Node) error {
	l, err := b.lock(ctx, n.Name)
	if err != nil {
		return err
	}
	defer l.release()
	_, pidfd, err := b.runUp(ctx, l, n, starter{start: b.launcher(n.Name)})
	pidfd.Close() // nil is allowed
	return err
}

// Inside is one more command for a running node. Fields that are not set are as for the node's first process.
type Inside struct {
	Args    []string
	User    string // as in the spec
	Env     []string
	Workdir string
	Timeout time.Duration // after it the command is killed, with its process group; 0: never
}

func (in *Inside) check() error {
	for _, word := range in.Args {
		if err := jsonfile.CheckText("the word", word); err != nil {
			return err
		}
	}
	for _, e := range in.Env {
		name, value, _ := strings.Cut(e, "=")
		if wrong := vnode.CheckVariable(name, value); wrong != "" {
			return refuse.Invalidf("variable %q: %s", name, wrong)
		}
	}
	return errors.Join(jsonfile.CheckText("the folder", in.Workdir), jsonfile.CheckText("the user", in.User))
}

// Exec runs one more command in a running node, with streams or a terminal of its own, and returns its exit code, 128 +
// the signal's number where a signal ended it.
//
// Words and variables that the runtimes' JSON cannot hold are refused: they would become others.
func (b *Berth) Exec(ctx context.Context, name string, in Inside, rio RunIO) (code int, err error) {
	if err := in.check(); err != nil {
		return 0, err
	}
	s, err := b.Stored(name)
	if err != nil {
		return 0, err
	}
	init, err := b.LiveInit(name)
	if err != nil {
		return 0, refuse.Busyf("node %s does not run; berth start %s starts it", name, name)
	}
	if j, err := b.Live(name); err == nil && history.IsPaused(j) {
		return 0, refuse.Busyf("node %s is paused: a command in it would not run; berth unpause %s lets the node go on", name, name)
	}
	if err := b.full(name, s.Now.PIDs, init.ExecProcesses(), nil); err != nil {
		return 0, err
	}
	cmd := runner.Command{Args: in.Args, Env: in.Env, Cwd: in.Workdir, Timeout: in.Timeout, RLimits: s.Now.RLimits}
	secrets, err := envfile.Secret(s.Now.EnvFrom)
	if err != nil {
		return 0, err
	}
	cmd.Env = append(secrets, cmd.Env...)
	if in.User != "" && s.Now.IsMachine() {
		if cmd.User, err = b.UserInImage(s.Now, in.User); err != nil {
			return 0, err
		}
	} else if in.User != "" {
		u, err := image.FindUserInside(fmt.Sprintf("/proc/%d/root", init.First().PID), s.Now.HasID, in.User)
		if err != nil {
			return 0, b.whyNot(ctx, err, name, init.First(), 0)
		}
		cmd.User = &runner.User{UID: u.UID, GID: u.GID, Additional: u.Groups}
	}
	if rio.TTY {
		code, err = foreground.ExecTerminal(ctx, init, cmd, rio.In, rio.Out)
		return code, b.whyNot(ctx, err, name, init.First(), s.Now.PIDs)
	}
	stdio, err := streams.Open(rio.In, rio.Out, rio.Err)
	if err != nil {
		return 0, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio.In, stdio.Out, stdio.Err
	code, err = foreground.Exec(ctx, init, cmd, stdio.Started)
	lost := foreground.Finish(stdio)
	if err == nil {
		return code, lost
	}
	return code, b.whyNot(ctx, err, name, init.First(), s.Now.PIDs)
}

// mostStarts is how many processes the start of a command may need in the node's groups, at most, with any runner.
const mostStarts = 16

// whyNot says that a node is ending, or at its limit of processes, where that may be why no command could be started in it.
func (b *Berth) whyNot(ctx context.Context, err error, name string, first proc.ID, limit int) error {
	if _, own := errors.AsType[*runner.CommandError](err); err == nil || own || refuse.KindOf(err) != refuse.Failed {
		return err
	}
	if l, _ := b.lockThere(ctx, name); l != nil { // waits for a command that ends the node, which may have killed this one first
		l.release()
	}
	if first.Ending() {
		return refuse.Busyf("node %s ended while the command was being started in it; berth start %s starts it", name, name)
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
	cg, err := host.ReadMounted()
	if err != nil {
		return err
	}
	n := counters.Stats(cg, b.GroupPath(name)).PIDs
	if n == nil || *n+int64(need) <= int64(limit) {
		return nil
	}
	text := fmt.Sprintf("node %s has %d of %d processes and threads (pids): no room for one more command; berth set %s pids=NUMBER gives it more", name, *n, limit, name)
	if because != nil {
		return refuse.Busyf("%s: %w", text, because)
	}
	return refuse.Busyf("%s", text)
}

// Throwaway makes a node that lasts until done is called, or until this process ends: then the keeper removes it. An
// unfiltered node has no filter of system calls. No spec can ask for that: it is there only to measure what the filter
// costs.
func (b *Berth) Throwaway(ctx context.Context, n *vnode.Node, unfiltered bool) (done func(), err error) {
	self, err := proc.Self()
	if err != nil {
		return nil, err
	}
	guard, err := b.keeper().Guard(ctx, n.Name)
	if err != nil {
		return nil, err
	}
	l, err := b.lock(ctx, n.Name)
	if err != nil {
		guard.Close()
		return nil, err
	}
	_, err = b.create(ctx, l, n, starter{start: b.launcher(n.Name), owner: &self, unfiltered: unfiltered})
	l.release()
	if err != nil {
		guard.Close()
		return nil, err
	}
	return func() {
		_ = b.Remove(context.WithoutCancel(ctx), n.Name, true)
		guard.Close()
	}, nil
}
