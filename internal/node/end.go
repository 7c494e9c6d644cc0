package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

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
		if !b.keeperRuns() { // what the node wrote last is lost if nobody has its pipe open
			_ = b.watch(ctx, name)
		}
		b.askToEnd(ctx, name, init.PID, pidfd, grace)
	}
	return true, b.down(ctx, name, j, Stopped, b.exitStatus(ctx, name, init.PID, init.StartTime, pidfd))
}

// askToEnd ends the init, gently at first.
func (b *Berth) askToEnd(ctx context.Context, name string, pid int, pidfd *os.File, grace time.Duration) {
	st, _ := b.status(name)
	sig := stopSignal(st)
	if grace > 0 && handles(pid, sig) {
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
	if cg, err := b.mounted(); err == nil {
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

// down ends the live part of a node whose init is gone, or is killed by it, and writes what became of it.
func (b *Berth) down(ctx context.Context, name string, j *step.Journal, state string, e ending) error {
	st, err := b.status(name)
	if err != nil {
		st = Status{Name: name}
	}
	st.State, st.Ended = state, time.Now()
	st.Exit = exitFrom(e.ws, e.known, b.oomKilled(name))
	if !e.known && !e.after.IsZero() {
		st.Exit.After = b.lastKnown(name, st.Started, e.after)
	}
	b.setStatus(st)
	step.Fault("end noted")
	return b.clear(ctx, name, j)
}

// downEnded is down for an init that has ended by itself, or was ended by a stop that was killed after it said so.
func (b *Berth) downEnded(ctx context.Context, name string, j *step.Journal, e ending) error {
	c := createStep(j)
	if st, err := b.status(name); err == nil && st.State == Stopped && c != nil && st.PID == c.PID {
		return b.clear(ctx, name, j)
	}
	return b.down(ctx, name, j, Exited, e)
}

func (b *Berth) oomKilled(name string) bool {
	cg, err := b.mounted()
	if err != nil {
		return false
	}
	kills := cgroup.Stats(cg, b.groupPath(name)).OOMKills
	return kills != nil && *kills > 0
}

// ended is called by the keeper when it saw an init end. It returns after which time to start the node again, 0: never.
func (b *Berth) ended(ctx context.Context, name string, pid int, e ending) (time.Duration, error) {
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return 0, err
	}
	defer l.release()
	if st, err := b.status(name); err == nil && st.Foreground != nil && alive(st.Foreground.PID, st.Foreground.Start) {
		return 0, nil // its berth run removes it, and tells why it ended
	}
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
		if err := b.downEnded(ctx, name, j, e); err != nil {
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

// RanWell is the time after which a node that ends is not taken to be in a loop of restarts.
const RanWell = 10 * time.Second

// restartIn is the time until the restart policy wants an ended node again, 0 if it does not: 0.1 s, doubled with each
// restart up to a minute. With count it notes that one more is due.
func (b *Berth) restartIn(name string, count bool) time.Duration {
	st, err := b.status(name)
	if err != nil {
		return 0
	}
	return b.restartOf(name, st, count)
}

func (b *Berth) restartOf(name string, st Status, count bool) time.Duration {
	if st.State != Exited || st.Foreground != nil {
		return 0
	}
	if boot, err := step.BootID(); err != nil || st.Boot != boot {
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
		if st.Ended.Sub(st.Started) > RanWell { // begin anew
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
