package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/image"
	"berth/internal/link"
	"berth/internal/oci"
	"berth/internal/plan"
	"berth/internal/step"
)

// Repaired says what repair found and did about one node.
type Repaired struct {
	Node string `json:"node"`
	Did  string `json:"did"`
}

// Repair undoes what killed commands left, node by node, and starts the keeper if nodes run without one.
func (b *Berth) Repair(ctx context.Context) ([]Repaired, error) {
	if err := b.makeDirs(); err != nil {
		return nil, err
	}
	if _, err := b.siteID(); err != nil { // half written by whoever was the first
		return nil, err
	}
	names, err := b.names()
	if err != nil {
		return nil, err
	}
	var all []Repaired
	var errs []error
	made, err := b.RestoreVFs(ctx, 0)
	if err != nil {
		errs = append(errs, err)
	}
	for _, m := range made {
		all = append(all, Repaired{Did: m})
	}
	var watch []string
	for _, name := range names {
		did, up, err := b.repairNode(ctx, name)
		if up {
			watch = append(watch, name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", name, err))
		}
		if did != "" {
			all = append(all, Repaired{Node: name, Did: did})
		}
	}
	if b.hub().Inode() != 0 { // its nodes may be gone without a trace
		if err := (&link.Bridge{Lock: b.Layout.HostLock(), Hub: b.hub()}).Undo(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	did, err := b.repairProtected(ctx)
	all = append(all, did...)
	if err != nil {
		errs = append(errs, err)
	}
	b.sweepLocks(ctx)
	if err := b.sweepClaims(ctx); err != nil {
		errs = append(errs, err)
	}
	if did, err := b.repairProbe(ctx); err != nil {
		errs = append(errs, err)
	} else if did {
		all = append(all, Repaired{Did: "removed what a killed probe of the runtimes left"})
	}
	store := image.Open(b.Layout)
	if err := errors.Join(store.Sweep(ctx), store.Collect(ctx, b.ImageUsers)); err != nil {
		errs = append(errs, err)
	}
	if len(watch) > 0 && !b.keeperRuns() {
		all = append(all, Repaired{Did: "started the keeper"})
	}
	for _, name := range watch { // also where a keeper runs: the command that would have told it may have been killed
		if err := b.watch(ctx, name); err != nil && b.wantsKeeper(name) { // else it was stopped or removed meanwhile
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

func (b *Berth) repairNode(ctx context.Context, name string) (did string, running bool, err error) {
	l, err := b.lock(ctx, name)
	if err != nil {
		return "", false, err
	}
	did, err = b.settleNode(ctx, name)
	for _, file := range []string{b.Layout.Node(name).Spec(), b.Layout.Node(name).Status()} {
		_ = os.Remove(file + unwritten)
	}
	if _, statErr := os.Stat(b.Layout.Node(name).Lib); errors.Is(statErr, fs.ErrNotExist) {
		l.remove()
		return did, false, err
	}
	if did == "" && err == nil {
		did, err = b.reattach(ctx, name)
	}
	if did == "" && err == nil {
		did, err = b.replugged(ctx, name)
	}
	if init, initErr := b.createdInit(name); err != nil && initErr == nil && !alive(init.PID, init.StartTime) {
		did, err = b.settleNode(ctx, name) // it ended while it was to be given something back
	}
	up := b.wantsKeeper(name)
	l.release()
	return did, up, err
}

// settle brings a node out of the state that a killed command left it in. The caller holds its lock.
func (b *Berth) settle(ctx context.Context, name string) error {
	_, err := b.settleNode(ctx, name)
	step.Fault("settled")
	return err
}

func (b *Berth) settleNode(ctx context.Context, name string) (did string, err error) {
	if did, err = b.settleLive(ctx, name); err != nil {
		return did, err
	}
	dirs := b.Layout.Node(name)
	claims, err := b.claims(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(dirs.Lib); errors.Is(err, fs.ErrNotExist) {
			return did, nil
		}
		return "removed an empty folder", b.destroy(ctx, name, journals{})
	case err != nil:
		return did, err
	case claims.Phase == step.Creating:
		return "rolled back: its creation was interrupted", b.destroy(ctx, name, journals{})
	case claims.Phase == step.Removing:
		return "removed: its removal was interrupted", b.destroy(ctx, name, journals{})
	case claims.Unfinished():
		did = "stopped: a change of what it is made of was interrupted"
		return did, claims.UndoUnfinished(ctx)
	}
	if st, err := b.status(name); err == nil && st.Foreground != nil && !alive(st.Foreground.PID, st.Foreground.Start) {
		return "removed: the berth run that it belonged to is gone", b.remove(ctx, name, journals{})
	}
	return did, nil
}

func (b *Berth) settleLive(ctx context.Context, name string) (did string, err error) {
	j, err := b.liveJournal(name)
	switch {
	case errors.Is(err, errRebooted):
		// The kernel that the steps changed is gone, and with it everything but files.
		st, err := b.status(name)
		if err == nil {
			st.State = Stopped
			b.setStatus(st)
		}
		// Where /run is not a tmpfs, the runtime's files survived too.
		state := os.RemoveAll(filepath.Join(b.Layout.RuntimeState(), name))
		return "stopped by a reboot", errors.Join(state, b.clear(ctx, name, nil))
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(b.Layout.Node(name).Run); err == nil {
			return "removed an empty live folder", b.clear(ctx, name, nil)
		}
		return "", nil
	case err != nil:
		return "", err
	case j.Phase == step.Creating:
		return "rolled back: its start was interrupted", b.clear(ctx, name, j)
	case j.Phase == step.Removing:
		return "stopped: its stop was interrupted", b.clear(ctx, name, j)
	}
	c := createStep(j)
	if c == nil || !alive(c.PID, c.StartTime) {
		return "cleaned up: its process 1 had ended", b.settleEnded(ctx, name, j)
	}
	b.settleStatus(name, c, j.Boot)
	if j.Set != nil {
		return b.settleSet(ctx, name, j)
	}
	return "", nil
}

// settleStatus writes the status of a node that runs, if the command that started it did not.
func (b *Berth) settleStatus(name string, init *oci.Create, boot string) {
	if st, err := b.status(name); err != nil || st.PID != init.PID || st.Start != init.StartTime {
		b.setStatus(b.statusFrom(name, init, boot))
	}
}

// statusFrom finds the status of a node that runs in its journal and its spec.
func (b *Berth) statusFrom(name string, init *oci.Create, boot string) Status {
	s, err := b.stored(name)
	if err != nil {
		return Status{Name: name, State: Running, PID: init.PID, Start: init.StartTime, Boot: boot}
	}
	f := plan.Facts{Runtime: init.Launch.Runtime}
	f.Host.BootID = boot
	if f.Image, err = image.Open(b.Layout).Resolve(s.Now.Image); err == nil {
		f.Command, _ = b.commandOf(s.Now, f.Image) // without it, only the signal that stops the init is a guess
	}
	return b.statusOf(s.Now, f, init, nil, b.restarts(name))
}

// settleEnded cleans up after an init that ended while no keeper saw it, or before the keeper got the lock.
func (b *Berth) settleEnded(ctx context.Context, name string, j *step.Journal) error {
	var e ending
	if c := createStep(j); c != nil {
		pidfd, err := openInit(c.PID, c.StartTime)
		if err == nil {
			defer pidfd.Close()
		}
		e = b.exitStatus(ctx, name, c.PID, c.StartTime, pidfd)
	}
	return b.downEnded(ctx, name, j, e)
}
