package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/image"
	"berth/internal/image/debian"
	"berth/internal/image/pull"
	"berth/internal/network/link"
	"berth/internal/node/history"
	"berth/internal/node/keeper"
	"berth/internal/node/mechanisms"
	"berth/internal/node/plan"
	"berth/internal/node/records"
	"berth/internal/node/rescue"
	"berth/internal/runner"
	"berth/internal/runner/choose"
	"berth/internal/storage/scratch"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/step"
)

// Repaired reports the repair of one node.
type Repaired struct {
	Node string `json:"node"`
	Did  string `json:"did"`
}

// Repair completes or undoes the unfinished work of killed commands, node by node, and starts the keeper if nodes run without
// one.
func (b *Berth) Repair(ctx context.Context) ([]Repaired, error) {
	if err := b.Layout.Make(); err != nil {
		return nil, err
	}
	names, err := b.Names()
	if err != nil {
		return nil, err
	}
	var all []Repaired
	written, err := rescue.Records(ctx, b.Nodes, names)
	errs := []error{err}
	made, err := b.beside.RestoreVFs(ctx)
	errs = append(errs, err)
	for _, m := range slices.Concat(written, made) {
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
	if b.Hub().Inode() != 0 { // its nodes may be gone without a trace
		errs = append(errs, (&link.Bridge{Lock: b.Layout.HostLock(), Hub: b.Hub()}).Undo(ctx))
	}
	errs = append(errs, plan.NAT(b.Layout, "").Sweep(ctx))
	services, err := b.beside.Repair(ctx)
	all = append(all, services...)
	errs = append(errs, err)
	swept, err := scratch.Pools{Dir: b.Layout.Scratch()}.Sweep(ctx, b.holdVolumes)
	errs = append(errs, err)
	for _, did := range swept {
		all = append(all, Repaired{Did: did})
	}
	b.sweepLocks(ctx)
	errs = append(errs, b.sweepClaims(ctx))
	did, err := choose.New(b.Layout, mechanisms.Containers()).Repair(ctx)
	errs = append(errs, err)
	if did {
		all = append(all, Repaired{Did: "removed what a killed probe of the runtimes left"})
	}
	store := image.Open(b.Layout)
	_, err = pull.Sweep(b.Layout.Pulls(), pull.Stale)
	errs = append(errs, err, debian.Sweep(ctx, b.Layout.Builds()), store.Sweep(ctx), store.Tidy(ctx, b.ImageUsers))
	if len(watch) > 0 && !b.keeper().Runs() {
		all = append(all, Repaired{Did: "started the keeper"})
	}
	for _, name := range watch { // also where a keeper runs: the command that would have told it may have been killed
		if err := b.keeper().Watch(ctx, name); err != nil && b.wantsKeeper(name) { // else it was stopped or removed meanwhile
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

// holdVolumes is a scratch.Holder. A node whose journal cannot be read keeps its volumes.
func (b *Berth) holdVolumes(ctx context.Context, name string, f func(has func(pool, volume string) bool) error) error {
	l, err := b.lock(ctx, name)
	if err != nil {
		return err
	}
	defer l.release()
	if b.Lost(name) != nil { // the command that settles the node tells it
		return nil
	}
	j, err := b.Claims(name)
	if errors.Is(err, fs.ErrNotExist) {
		return f(func(string, string) bool { return false })
	}
	if err != nil {
		return err
	}
	return f(func(pool, volume string) bool {
		return slices.ContainsFunc(scratch.Volumes(j.Steps()), func(v *scratch.Volume) bool { return v.Pool.ID == pool && v.Name() == volume })
	})
}

func (b *Berth) repairNode(ctx context.Context, name string) (did string, running bool, err error) {
	l, err := b.lock(ctx, name)
	if err != nil {
		return "", false, err
	}
	defer l.release()
	did, err = b.settleNode(ctx, name)
	for _, path := range []string{b.Layout.Node(name).Spec(), b.Layout.Node(name).Status()} {
		_ = os.Remove(path + file.Unwritten)
	}
	if _, statErr := os.Stat(b.Layout.Node(name).Lib); errors.Is(statErr, fs.ErrNotExist) {
		return did, false, err
	}
	said := []string{did}
	for _, giveBack := range []func(context.Context, string) (string, error){b.reattach, b.replugged, b.restored} { // one may have lost of each
		if err == nil {
			did, err = giveBack(ctx, name)
			said = append(said, did)
		}
	}
	did = strings.Join(slices.DeleteFunc(said, func(s string) bool { return s == "" }), "; ")
	if init, initErr := b.CreatedInit(name); err != nil && initErr == nil && !init.First().Alive() {
		did, err = b.settleNode(ctx, name) // it ended while it was to be given something back
	}
	return did, b.wantsKeeper(name), err
}

// settle brings a node out of the state that a killed command left it in. The caller holds its lock.
func (b *Berth) settle(ctx context.Context, name string) error {
	_, err := b.settleNode(ctx, name)
	fault.Point("settled")
	return err
}

func (b *Berth) settleNode(ctx context.Context, name string) (string, error) {
	did, live, err := b.settleLive(ctx, name)
	if err != nil {
		return did, err
	}
	dirs := b.Layout.Node(name)
	claims, err := b.Claims(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && claims.Phase == step.Creating {
		if lost := b.Lost(name); lost != nil {
			return did, lost
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(dirs.Lib); errors.Is(err, fs.ErrNotExist) {
			return did, nil
		}
		return "removed an empty folder", b.destroy(ctx, name, journals{})
	case err != nil:
		return did, err
	case claims.Phase == step.Creating && b.outlived(claims):
		return "kept: its creation was interrupted when all of it was made", claims.SetPhase(step.Up)
	case claims.Phase == step.Creating:
		return "rolled back: its creation was interrupted", b.destroy(ctx, name, journals{})
	case claims.Phase == step.Removing:
		return "removed: its removal was interrupted", b.destroy(ctx, name, journals{})
	case claims.Unfinished():
		did = "stopped: a change of what it is made of was interrupted"
		return did, claims.UndoUnfinished(ctx)
	}
	f, err := history.Of(claims)
	if err != nil {
		return did, err
	}
	if f.Orphaned() {
		return "removed: the berth run that it belonged to is gone", b.remove(ctx, name, journals{})
	}
	history.Tell(b.Events(), claims, live, true)
	return settleRestart(claims, live, did)
}

// outlived reports whether a node that was being created had run when its maker was killed, or was whole when the host lost its power:
// its programs may have written files that only a removal may delete.
func (b *Berth) outlived(claims *step.Journal) bool {
	if !history.Whole(claims) {
		return false
	}
	_, ran := os.Lstat(b.Layout.Node(claims.Node).Status())
	boot, err := b.Host.BootID()
	return ran == nil || err != nil || claims.Boot != boot
}

// settleLive is settle of the live journal, which it returns if the node runs.
func (b *Berth) settleLive(ctx context.Context, name string) (did string, live *step.Journal, err error) {
	j, err := b.Live(name)
	switch {
	case errors.Is(err, records.ErrRebooted):
		// The kernel that the steps changed is gone, and with it everything but files.
		if err := b.stopped(name, true); err != nil {
			return "", nil, err
		}
		// Where /run is not a tmpfs, the runtime's files survived too.
		state := os.RemoveAll(filepath.Join(b.Layout.RuntimeState(), name))
		return "stopped by a reboot", nil, errors.Join(state, b.clear(ctx, name, nil))
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(b.Layout.Node(name).Run); err == nil {
			return "removed an empty live folder", nil, b.clear(ctx, name, nil)
		}
		return "", nil, nil
	case err != nil:
		return "", nil, err
	case j.Phase == step.Creating:
		return "rolled back: its start was interrupted", nil, b.clear(ctx, name, j)
	case j.Phase == step.Removing:
		return "stopped: its stop was interrupted", nil, b.clear(ctx, name, j)
	}
	c := runner.FirstProcess(j.Steps())
	if c != nil && c.First().Ending() {
		b.letEnd(ctx, name, c.First())
	}
	if c == nil || !c.First().Alive() {
		return "cleaned up: its process 1 had ended", nil, b.settleEnded(ctx, name, j)
	}
	did, err = b.settlePause(name, j)
	if st, err := b.Noted(name); err != nil || st.PID != c.First().PID || st.Start != c.First().Start || (st.State == Paused) != history.IsPaused(j) {
		b.Note(b.StatusFrom(name, c, j)) // the command that started or paused it did not
	}
	if j.Set != nil && err == nil {
		did, err = b.settleSet(ctx, name, j)
	}
	return did, j, err
}

// settlePause ends a pause or an unpause that was killed: unless the node is paused as a whole, it goes on.
func (b *Berth) settlePause(name string, j *step.Journal) (did string, err error) {
	paused, ever := history.Paused(j)
	if !ever {
		return "", nil
	}
	frozen := b.Frozen(name)
	switch {
	case paused == frozen:
		return "", nil
	case paused:
		did = "runs: its pause was interrupted"
	default:
		did = "runs: its unpause was interrupted"
	}
	return did, b.thaw(name, j)
}

// settleRestart says how a restart ended whose command was killed.
func settleRestart(claims, live *step.Journal, did string) (string, error) {
	if !history.Restarting(claims) {
		return did, nil
	}
	did = "stopped: its restart was interrupted; berth start " + claims.Node + " starts it"
	if live != nil {
		did = "runs: its restart was interrupted"
	}
	return did, history.SetRestarting(claims, false)
}

// settleEnded cleans up after an init that ended while no keeper saw it, or before the keeper got the lock.
func (b *Berth) settleEnded(ctx context.Context, name string, j *step.Journal) error {
	var e keeper.Ending
	if c := runner.FirstProcess(j.Steps()); c != nil {
		pidfd, err := c.First().Open()
		if err == nil {
			defer pidfd.Close()
		}
		e = b.exitStatus(ctx, name, c.First(), pidfd)
	}
	return b.downEnded(ctx, name, j, e)
}

// settled settles a node if it is there. It returns when the end of the node's init is noted, by the keeper or by this process.
func (b *Berth) settled(ctx context.Context, name string) error {
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return err
	}
	defer l.release()
	return b.settle(ctx, name)
}
