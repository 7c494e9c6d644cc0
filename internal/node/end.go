package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/counters"
	"berth/internal/host/group"
	"berth/internal/node/history"
	"berth/internal/node/keeper"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/fault"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// OwnGrace is the time to wait that the node's spec says.
const OwnGrace time.Duration = -1

// Stop ends a node's processes: the signal that its init understands, a grace time, then SIGKILL to all of them. The files that
// the node wrote, its MACs and its id range are kept.
func (b *Berth) Stop(ctx context.Context, name string, grace time.Duration) (changed bool, err error) {
	l, killed, err := b.lockKilling(ctx, name, grace == 0)
	if err != nil {
		return false, err
	}
	defer l.release()
	changed, err = b.stop(ctx, name, grace)
	return changed || killed, err
}

func (b *Berth) stop(ctx context.Context, name string, grace time.Duration) (changed bool, err error) {
	j, err := b.Live(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, b.stopped(name, false) // also ends a pending restart
	}
	if err != nil {
		return false, err
	}
	init := runner.FirstProcess(j.Steps())
	pidfd, err := init.First().Open()
	if err == nil {
		defer pidfd.Close()
		if !b.keeper().Runs() { // the node's last output is lost if no process has its pipe open
			_ = b.keeper().Watch(ctx, name)
		}
		if err := b.askToEnd(ctx, name, j, pidfd, grace, func() {
			if history.IsPaused(j) {
				_ = b.thaw(name, j) // else it is killed
			}
		}); err != nil {
			return false, errors.Join(err, b.noteDown(name, j, Stopped, keeper.Ending{})) // its end completes the stop
		}
	}
	return true, b.down(ctx, name, j, Stopped, b.exitStatus(ctx, name, init.First(), pidfd))
}

// askToEnd ends the node's first process, gently at first. signalled is called when it has its signal. The error, refuse.Busy,
// says for what its processes wait and cannot end.
func (b *Berth) askToEnd(ctx context.Context, name string, j *step.Journal, pidfd *os.File, grace time.Duration, signalled func()) error {
	init := runner.FirstProcess(j.Steps())
	if grace == OwnGrace {
		grace = vnode.DefaultGrace
		if s, err := b.Stored(name); err == nil { // a node whose spec is damaged can be stopped
			grace = s.Now.Stop.Wait()
		}
	}
	if grace > 0 {
		_ = history.SetAsked(j, time.Now().Add(grace+time.Minute)) // not on a disk that has turned read-only
		fault.Point("asked to end")
		defer group.LiftOnEnd(init.First(), func() { b.lift(name) })()
		heard, err := init.Signal(init.StopSignal())
		signalled()
		if heard && err == nil && proc.WaitFor(ctx, pidfd, grace) {
			return nil
		}
	}
	if err := b.kill(ctx, name, j); refuse.KindOf(err) == refuse.Busy {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	_ = proc.Signal(pidfd, unix.SIGKILL)
	proc.WaitFor(context.WithoutCancel(ctx), pidfd, 10*time.Second)
	return nil
}

// kill ends all processes of the node, if there are any. Processes that it leaves are ended or reported by the undo of the
// steps.
func (b *Berth) kill(ctx context.Context, name string, j *step.Journal) error {
	b.lift(name)
	cg, err := host.ReadMounted()
	if err == nil {
		err = gateway.Kill(ctx, j.Steps(), func(ctx context.Context) error { return group.Kill(ctx, cg, b.GroupPath(name)) })
	}
	return err
}

// notePause notes in the journal and in the status whether the node is paused.
func (b *Berth) notePause(name string, j *step.Journal, paused bool) error {
	if err := history.SetPaused(j, paused); err != nil {
		return err
	}
	if st, err := b.Noted(name); err == nil {
		if st.State = Running; paused {
			st.State = Paused
		}
		b.Note(st)
	}
	return nil
}

func (b *Berth) thaw(name string, j *step.Journal) error {
	if err := b.notePause(name, j, false); err != nil {
		return err
	}
	err := b.thawGroup(name)
	fault.Point("thawed")
	return err
}

// thawGroup lets the processes go on: frozen on cgroup v1, they would not even end by SIGKILL.
func (b *Berth) thawGroup(name string) error {
	cg, err := host.ReadMounted()
	if err != nil {
		return err
	}
	return group.Thaw(cg, b.GroupPath(name))
}

// endOf returns how a node of the keeper's ended, once that is noted.
func (b *Berth) endOf(ctx context.Context, name string, first proc.ID) (*history.Exit, error) {
	err := b.settled(ctx, name)
	if f, fateErr := b.Fate(name); fateErr == nil && f.Last != nil && f.Last.Process == first && f.Last.Exit != nil {
		return f.Last.Exit, err
	}
	return &history.Exit{Unknown: true, Code: 128 + int(unix.SIGKILL)}, err // another command removed it
}

// down writes how a node ended whose init is gone, or is killed by this, and undoes its live steps: of a stopped one also where that fails.
func (b *Berth) down(ctx context.Context, name string, j *step.Journal, state string, e keeper.Ending) error {
	err := b.noteDown(name, j, state, e)
	if err != nil && state != Stopped {
		return err
	}
	if err != nil {
		err = fmt.Errorf("node %s runs no more, and how it ended cannot be written: %w; its files and claims are as they were", name, err)
	}
	return errors.Join(err, b.clear(ctx, name, j))
}

// noteDown writes how a node ended.
func (b *Berth) noteDown(name string, j *step.Journal, state string, e keeper.Ending) error {
	f, err := b.Fate(name)
	if err != nil {
		return err
	}
	last := history.End{State: state, Boot: j.Boot, Ended: time.Now(), Exit: history.ExitOf(e.Status, e.Known, b.oomKilled(name)), Restarts: f.Restarts()}
	if init := runner.FirstProcess(j.Steps()); init != nil {
		last.Process = init.First()
	}
	if last.Started, err = history.Started(j); err != nil {
		return err
	}
	if !e.Known && !e.After.IsZero() {
		last.Exit.After = b.lastKnown(name, last.Started, e.After)
	}
	last.Exit.Unhealthy = state == Exited && history.Unhealthy(j)
	if err := f.Note(last); err != nil {
		return err
	}
	b.copyEnd(name, last)
	fault.Point("end noted")
	history.Tell(b.Events(), f.Claims, nil, false)
	return nil
}

// downEnded is down for an init that has ended by itself, or was ended by a stop that was killed after it said so.
func (b *Berth) downEnded(ctx context.Context, name string, j *step.Journal, e keeper.Ending) error {
	f, err := b.Fate(name)
	if err != nil {
		return err
	}
	if c := runner.FirstProcess(j.Steps()); c != nil && f.Last != nil && f.Last.State == Stopped && f.Last.Process == c.First() {
		return b.clear(ctx, name, j)
	}
	state := Exited
	if rebooted := e.Known && e.Status.Signaled() && e.Status.Signal() == unix.SIGHUP; rebooted && history.Asked(j) && !history.Unhealthy(j) {
		state = Stopped // some inits boot again by the signal that asks them to end
	}
	return b.down(ctx, name, j, state, e)
}

// noteEnd notes and tells how a node ended that is removed at once, by the berth run that it belongs to.
func (b *Berth) noteEnd(js journals, exit *history.Exit) {
	f, err := history.Of(js.claims)
	if err != nil || !js.claims.Untouched() { // else another command has settled it
		return
	}
	last := history.End{State: Exited, Process: runner.FirstProcess(js.live.Steps()).First(), Boot: js.live.Boot, Ended: time.Now(), Exit: exit}
	last.Started, _ = history.Started(js.live)
	if f.Note(last) == nil {
		history.Tell(b.Events(), js.claims, nil, false)
	}
}

func (b *Berth) oomKilled(name string) bool {
	cg, err := host.ReadMounted()
	if err != nil {
		return false
	}
	kills := counters.Stats(cg, b.GroupPath(name)).OOMKills
	return kills != nil && *kills > 0
}

// Ended implements keeper.Nodes.
func (k *kept) Ended(ctx context.Context, name string, pid int, e keeper.Ending) (time.Duration, error) {
	b := k.b
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return 0, err
	}
	defer l.release()
	f, err := b.Fate(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, err
	case f.Owner != nil && f.Owner.Alive():
		return 0, nil // its berth run removes it, and tells why it ended
	}
	j, err := b.Live(name)
	switch {
	case errors.Is(err, fs.ErrNotExist): // a command was faster; its note says whether it stopped the node
		if f.Last == nil || f.Last.State != Exited || f.Last.Process.PID != pid {
			return 0, nil
		}
	case err != nil:
		return 0, err
	default:
		if c := runner.FirstProcess(j.Steps()); c == nil || c.First().PID != pid {
			return 0, nil
		}
		if j.Phase != step.Up {
			return 0, b.settle(ctx, name)
		}
		if err := b.downEnded(ctx, name, j, e); err != nil {
			return 0, err
		}
	}
	return b.restartIn(name, history.End.Counted), nil
}

// wantsKeeper reports whether the keeper has something to do for a node: it runs, or is due for a restart.
func (b *Berth) wantsKeeper(name string) bool {
	_, err := b.LiveInit(name)
	return err == nil || b.restartIn(name, nil) > 0
}

// restartIn returns when a node is due for a restart; 0: it is not. count, if not nil, counts one more restart, which is noted.
func (b *Berth) restartIn(name string, count func(history.End) history.End) time.Duration {
	f, err := b.Fate(name)
	if err != nil || f.Last == nil {
		return 0
	}
	boot, err := b.Host.BootID()
	if err != nil {
		return 0
	}
	s, err := b.Stored(name)
	if err != nil || f.Due(s.Now.Restart, boot) == 0 {
		return 0
	}
	if count != nil {
		if err := f.Note(count(*f.Last)); err != nil {
			return time.Minute // the disk may have room then
		}
		b.copyEnd(name, *f.Last)
		fault.Point("restart noted")
		history.Tell(b.Events(), f.Claims, nil, false)
	}
	return f.Due(s.Now.Restart, boot)
}

// copyEnd copies how a node ended to its status.
func (b *Berth) copyEnd(name string, last history.End) {
	st, err := b.Noted(name)
	if err != nil {
		st = Status{Name: name}
	}
	st.Take(last)
	b.Note(st)
}

// stopped notes that a node does not run and is not to be restarted: it was stopped after it had ended, or ended by a reboot.
func (b *Berth) stopped(name string, rebooted bool) error {
	f, err := b.Fate(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || f.Claims.Empty() {
		return err
	}
	last := history.End{}
	if f.Last != nil && !rebooted {
		last = *f.Last
	}
	if last.State == Stopped {
		return nil
	}
	last.State = Stopped
	if err := f.Note(last); err != nil {
		return err
	}
	b.copyEnd(name, last)
	return nil
}

func (b *Berth) tell(name, what string) {
	if b.beside.Tell != nil {
		b.beside.Tell(name, what)
	}
}

// lift takes the rates of block I/O off a node whose processes are killed next, and tells if one of them waited. Behind a low
// rate a single write would keep its process, and the node with it, for as long as the rate has it wait. lifted is false if it
// had none.
func (b *Berth) lift(name string) (lifted bool) {
	cg, err := host.ReadMounted()
	if err != nil {
		return false // the command that kills finds the same, and says so
	}
	lifted, said := group.Lift(cg, b.GroupPath(name))
	if said != "" {
		b.tell(name, said)
	}
	return lifted
}

// letEnd lifts the rates of a node whose first process is ending. If it had any, letEnd waits for the end, for as long as a
// kill would.
func (b *Berth) letEnd(ctx context.Context, name string, first proc.ID) {
	pidfd, err := first.Open()
	if err != nil {
		return // it has ended
	}
	defer pidfd.Close()
	if b.lift(name) {
		proc.WaitFor(ctx, pidfd, 10*time.Second)
	}
}
