package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/layout"
	"berth/internal/oci"
	"berth/internal/plan"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

// starter says how a node's runtime is started, and with which files.
type starter struct {
	start      func(context.Context, *oci.Launch) error // nil: by this process itself
	stdin      *os.File                                 // nil: /dev/null
	stdout     *os.File                                 // nil: the node's log
	stderr     *os.File
	listen     func(path string) error // for berth run -t: opens the socket that takes the terminal
	before     func() error            // called when the init exists and has not started
	foreground *holder
}

// create makes a node that is not there and starts it. Whatever fails, nothing is left.
func (b *Berth) create(ctx context.Context, l *lock, n *vnode.Node, s starter) (err error) {
	facts, err := b.facts(ctx, n)
	if err != nil {
		return err
	}
	claims, err := plan.Claims(n, facts)
	if err != nil {
		return err
	}
	// Everything that the planner can refuse is refused here, before anything is changed.
	if _, err := plan.Live(n, facts, claims); err != nil {
		return err
	}
	dirs := b.Layout.Node(n.Name)
	if err := os.Mkdir(dirs.Lib, 0o700); err != nil {
		return fmt.Errorf("make folder of node %s: %w", n.Name, err)
	}
	step.Fault("node folder made")
	defer func() {
		if err != nil {
			err = errors.Join(err, b.destroy(context.WithoutCancel(ctx), n.Name))
		}
	}()
	j, err := step.Create(dirs.Claims(), n.Name, facts.Host.BootID)
	if err != nil {
		return err
	}
	for _, c := range claims {
		if err := claim(ctx, j, c); err != nil {
			return err
		}
	}
	if err := b.store(n.Name, &Stored{Applied: n, Now: n}); err != nil {
		return err
	}
	if err := b.start(ctx, l, n, facts, j, s); err != nil {
		return err
	}
	return j.SetPhase(step.Up)
}

// claim makes one claim; what it makes for the node belongs to the ids that were claimed before it.
func claim(ctx context.Context, j *step.Journal, c step.Step) error {
	plan.Own(c, plan.Range(j.Steps()))
	if err := j.Do(ctx, c); err != nil {
		return fmt.Errorf("node %s: %w", j.Node, err)
	}
	return nil
}

// start starts a node whose claims are made. If it fails, the node is as it was: not running.
func (b *Berth) start(ctx context.Context, l *lock, n *vnode.Node, facts plan.Facts, claims *step.Journal, s starter) (err error) {
	facts.TTY = s.listen != nil
	steps, err := plan.Live(n, facts, claims.Steps())
	if err != nil {
		return err
	}
	dirs := b.Layout.Node(n.Name)
	var j *step.Journal
	defer func() {
		if err != nil {
			err = errors.Join(err, b.clear(context.WithoutCancel(ctx), n.Name, j))
		}
	}()
	if err := b.makeLiveDirs(dirs, plan.Range(claims.Steps()).Base); err != nil {
		return err
	}
	if j, err = step.Create(dirs.Journal(), n.Name, facts.Host.BootID); err != nil {
		return err
	}
	files, err := b.stdio(n.Name, &s, plan.Range(claims.Steps()).Base)
	if err != nil {
		return err
	}
	defer closeAll(files)
	if s.listen != nil {
		if err := s.listen(dirs.TTY()); err != nil {
			return err
		}
	}
	var init *oci.Create
	for _, st := range steps {
		switch c := st.(type) {
		case *oci.Create:
			init = c
			c.Start = s.start
			c.Launch.Stdin, c.Launch.Stdout, c.Launch.Stderr = s.stdin, s.stdout, s.stderr
			c.Launch.Lock = l.f
			if s.listen != nil {
				c.Launch.ConsoleSocket = dirs.TTY()
			}
		case *oci.Start:
			if s.before != nil {
				if err := s.before(); err != nil {
					return err
				}
			}
		}
		if err := j.Do(ctx, st); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	if err := j.SetPhase(step.Up); err != nil {
		return err
	}
	b.setStatus(statusOf(n, facts, init, s.foreground, b.restarts(n.Name)))
	return nil
}

// makeLiveDirs makes the node's live folders. The runtime passes through them as the node's root: hence the group.
func (b *Berth) makeLiveDirs(dirs layout.Node, gid uint32) error {
	for _, d := range []string{dirs.Run, dirs.Root(), dirs.Stage()} {
		if err := os.Mkdir(d, 0o710); err != nil {
			return fmt.Errorf("make folder of node %s: %w", dirs.Name, err)
		}
		if err := os.Chown(d, 0, int(gid)); err != nil {
			return fmt.Errorf("make folder of node %s: %w", dirs.Name, err)
		}
		step.Fault("live folder made")
	}
	return nil
}

func statusOf(n *vnode.Node, f plan.Facts, init *oci.Create, fg *holder, restarts int) Status {
	st := Status{
		Name: n.Name, State: Running, PID: init.PID, Start: init.StartTime, Boot: f.Host.BootID, Started: time.Now(),
		Image: n.Image.String(), Runtime: f.Runtime.String(), UserNS: n.UserNS(), InitKind: string(f.Command.Init), Foreground: fg,
		StopSignal: f.Image.Config.StopSignal, Restarts: restarts,
	}
	for _, nw := range n.Network {
		st.Addresses = append(st.Addresses, nw.Address...)
	}
	return st
}

func (b *Berth) restarts(name string) int {
	st, _ := b.status(name)
	return st.Restarts
}

// stdio opens what the node's command reads and writes, where the caller has not. The log is the node's root's: what
// runs in the node can open it again as /dev/stdout.
func (b *Berth) stdio(name string, s *starter, owner uint32) (opened []*os.File, err error) {
	if s.stdin == nil {
		if s.stdin, err = os.Open(os.DevNull); err != nil {
			return nil, err
		}
		opened = append(opened, s.stdin)
	}
	if s.stdout == nil {
		log := b.Layout.Node(name).Log()
		s.stdout, err = os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
		if err == nil {
			opened = append(opened, s.stdout)
			err = s.stdout.Chown(int(owner), int(owner))
		}
		if err != nil {
			closeAll(opened)
			return nil, fmt.Errorf("open log: %w", err)
		}
	}
	if s.stderr == nil {
		s.stderr = s.stdout
	}
	return opened, nil
}

// clear undoes a node's live steps and removes its live folder.
func (b *Berth) clear(ctx context.Context, name string, j *step.Journal) error {
	if j != nil {
		b.kill(ctx, name) // first: links of a dead node are gone much faster than those of a living one
		if err := j.Close(ctx); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(b.Layout.Node(name).Run); err != nil {
		return fmt.Errorf("remove live folder of node %s: %w", name, err)
	}
	step.Fault("live folder removed")
	return nil
}

// destroy removes a node altogether, whatever there is of it.
func (b *Berth) destroy(ctx context.Context, name string) error {
	live, err := b.liveJournal(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := b.clear(ctx, name, live); err != nil {
		return err
	}
	claims, err := b.claims(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if claims != nil {
		if err := claims.Close(ctx); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(b.Layout.Node(name).Lib); err != nil {
		return fmt.Errorf("remove folder of node %s: %w", name, err)
	}
	step.Fault("folder removed")
	return nil
}

// down ends the live part of a node whose init is gone, or is killed by it, and writes what became of it.
func (b *Berth) down(ctx context.Context, name string, j *step.Journal, state string, ws unix.WaitStatus, known bool) error {
	st, err := b.status(name)
	if err != nil {
		st = Status{Name: name}
	}
	st.State, st.Ended = state, time.Now()
	st.Exit = exitFrom(ws, known, b.oomKilled(name))
	b.setStatus(st)
	step.Fault("end noted")
	return b.clear(ctx, name, j)
}

func (b *Berth) oomKilled(name string) bool {
	cg, err := b.cgroups()
	if err != nil {
		return false
	}
	kills := cgroup.Stats(cg, b.groupPath(name)).OOMKills
	return kills != nil && *kills > 0
}

// ended is called by the keeper when it saw an init end. It returns after which time to start the node again, 0: never.
func (b *Berth) ended(ctx context.Context, name string, pid int, ws unix.WaitStatus, known bool) (time.Duration, error) {
	l, err := b.lock(ctx, name)
	if err != nil {
		return 0, err
	}
	defer l.release()
	j, err := b.liveJournal(name)
	switch {
	case errors.Is(err, fs.ErrNotExist): // a command was faster; its status says whether it stopped the node
		if st, err := b.status(name); err != nil || st.State != Exited || st.PID != pid {
			b.unlockGone(name, l)
			return 0, nil
		}
	case err != nil:
		return 0, err
	default:
		if c := createStep(j); c == nil || c.PID != pid {
			return 0, nil
		}
		if j.Phase != step.Up {
			return 0, b.settle(ctx, name)
		}
		if err := b.down(ctx, name, j, Exited, ws, known); err != nil {
			return 0, err
		}
	}
	return b.restartIn(name, true), nil
}

// unlockGone removes the lock's file if the node is gone: locking made it anew.
func (b *Berth) unlockGone(name string, l *lock) {
	if _, err := os.Stat(b.Layout.Node(name).Lib); errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(l.f.Name())
	}
}

// restartIn is the time until the restart policy wants an ended node again, 0 if it does not: 0.1 s, doubled with each
// restart up to a minute. With count it notes that one more is due.
func (b *Berth) restartIn(name string, count bool) time.Duration {
	st, err := b.status(name)
	if err != nil || st.State != Exited || st.Foreground != nil {
		return 0
	}
	if boot, err := bootID(); err != nil || st.Boot != boot {
		return 0
	}
	s, err := b.stored(name)
	switch {
	case err != nil:
		return 0
	case s.Now.Restart == vnode.Always:
	case s.Now.Restart == vnode.OnFailure && st.Exit != nil && st.Exit.failed():
	default:
		return 0
	}
	if count {
		if st.Ended.Sub(st.Started) > 10*time.Second { // it ran well for a while: begin anew
			st.Restarts = 0
		}
		st.Restarts++
		b.setStatus(st)
		step.Fault("restart noted")
	}
	return min(100*time.Millisecond<<min(max(st.Restarts-1, 0), 12), time.Minute)
}

// restart starts a node again that its restart policy wants. If that fails it returns when to try again.
func (b *Berth) restart(ctx context.Context, name string) (again time.Duration, err error) {
	l, err := b.lockNode(ctx, name)
	if refuse.KindOf(err) == refuse.NotFound {
		return 0, nil // removed meanwhile
	}
	if err != nil {
		return 0, err
	}
	defer l.release()
	if b.restartIn(name, false) == 0 {
		return 0, nil // stopped or started meanwhile
	}
	s, err := b.stored(name)
	if err == nil {
		err = b.renew(ctx, l, s.Now, s)
	}
	if err != nil {
		again = b.restartIn(name, true)
	}
	return again, err
}

// wantsKeeper reports whether the keeper has something to do for a node: it runs, or is due for a restart.
func (b *Berth) wantsKeeper(name string) bool {
	_, err := b.liveInit(name)
	return err == nil || b.restartIn(name, false) > 0
}

// Start starts a stopped node; changed is false if it ran already.
func (b *Berth) Start(ctx context.Context, name string) (changed bool, err error) {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return false, err
	}
	defer l.release()
	if _, err := b.liveInit(name); err == nil {
		return false, b.watch(ctx, name)
	}
	s, err := b.stored(name)
	if err != nil {
		return false, err
	}
	return true, b.renew(ctx, l, s.Now, s)
}

// Stop ends a node's processes: the signal that its init understands, a grace time, then SIGKILL to all of them.
// What the node wrote, its MACs and its id range are kept.
func (b *Berth) Stop(ctx context.Context, name string, grace time.Duration) (changed bool, err error) {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return false, err
	}
	defer l.release()
	return b.stop(ctx, name, grace)
}

func (b *Berth) stop(ctx context.Context, name string, grace time.Duration) (changed bool, err error) {
	j, err := b.liveJournal(name)
	if errors.Is(err, fs.ErrNotExist) {
		if st, err := b.status(name); err == nil && st.State != Stopped { // also ends a pending restart
			st.State = Stopped
			b.setStatus(st)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	init := createStep(j)
	pidfd, err := openInit(init.PID, init.StartTime)
	if err == nil {
		defer pidfd.Close()
		b.askToEnd(ctx, name, init.PID, pidfd, grace)
	}
	ws, known := b.exitStatus(ctx, name, init.PID, init.StartTime, pidfd)
	return true, b.down(ctx, name, j, Stopped, ws, known)
}

// askToEnd ends the init, gently at first.
func (b *Berth) askToEnd(ctx context.Context, name string, pid int, pidfd *os.File, grace time.Duration) {
	st, _ := b.status(name)
	sig := stopSignal(st)
	if grace > 0 && (handles(pid, sig) || sig > unix.SIGUSR2) {
		if unix.PidfdSendSignal(int(pidfd.Fd()), sig, nil, 0) == nil && waitCtx(ctx, pidfd, grace) {
			return
		}
	}
	b.kill(ctx, name)
	_ = unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0)
	waitPidfd(pidfd, 10_000)
}

// kill ends all processes of the node, if there are any. What it leaves, the steps' undo ends or reports.
func (b *Berth) kill(ctx context.Context, name string) {
	if cg, err := b.cgroups(); err == nil {
		_ = cgroup.Kill(ctx, cg, b.groupPath(name))
	}
}

// waitCtx waits for the process's end, the time, or the context, whichever is first.
func waitCtx(ctx context.Context, pidfd *os.File, d time.Duration) bool {
	end := time.Now().Add(d)
	for ctx.Err() == nil {
		left := time.Until(end)
		if left <= 0 {
			return false
		}
		if waitPidfd(pidfd, int(min(left, 200*time.Millisecond).Milliseconds())+1) {
			return true
		}
	}
	return false
}

// stopSignal is what asks this init to end: the image's own, or its kind's.
func stopSignal(st Status) unix.Signal {
	if sig := unix.SignalNum(st.StopSignal); sig != 0 {
		return sig
	}
	switch st.InitKind {
	case "systemd":
		return unix.Signal(34 + 3) // SIGRTMIN+3: halt.target, systemd(1)
	case "busybox":
		return unix.SIGUSR2 // poweroff; SIGTERM would reboot: busybox init
	case "sysv":
		return unix.SIGPWR
	}
	return unix.SIGTERM
}

// Remove removes a node and everything it wrote. A running one needs force.
func (b *Berth) Remove(ctx context.Context, name string, force bool) error {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return err
	}
	if _, err := b.liveInit(name); err == nil && !force {
		l.release()
		return refuse.Busyf("node %s is running; stop it, or remove it with --force", name)
	}
	if err := b.remove(ctx, name); err != nil {
		l.release()
		return err
	}
	l.remove()
	return nil
}

func (b *Berth) remove(ctx context.Context, name string) error {
	if claims, err := b.claims(name); err == nil {
		if err := claims.SetPhase(step.Removing); err != nil && !errors.Is(err, unix.ENOSPC) {
			return err
		}
	}
	return b.destroy(ctx, name)
}

// removeForeground removes what a killed berth run left.
func (b *Berth) removeForeground(ctx context.Context, name string) error {
	if _, err := os.Stat(b.Layout.Node(name).Lib); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l, err := b.lock(ctx, name)
	if err != nil {
		return err
	}
	if err := b.settle(ctx, name); err != nil {
		l.release()
		return err
	}
	l.remove()
	return nil
}

func createStep(j *step.Journal) *oci.Create {
	steps := j.Steps()
	i := slices.IndexFunc(steps, func(s step.Step) bool { _, ok := s.(*oci.Create); return ok })
	if i < 0 {
		return nil
	}
	return steps[i].(*oci.Create)
}
