package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/block"
	"berth/internal/limit/device"
	"berth/internal/network/link"
	"berth/internal/node/events"
	"berth/internal/node/inspect"
	"berth/internal/node/keeper"
	"berth/internal/node/plan"
	"berth/internal/storage/gateway"
	"berth/internal/sys/fault"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// replugged brings a running node's devices and its limits on disks in line with the devices that are plugged in now: the
// node loses those that are gone, gets those that came back, with their limits and their new number, and loses a limit
// that acts on another disk which took over a number. The caller holds its lock.
//
// It is a live change in the journal, of the host and not of the spec. There is no way back to an unplugged device: if the
// change is killed or fails, the table on disk has the devices from before, and the next change does all of it again.
func (b *Berth) replugged(ctx context.Context, name string) (did string, err error) {
	p, err := b.planReplug(name)
	if err != nil || p == nil {
		return "", err
	}
	j, err := b.Live(name)
	if err != nil {
		return "", err
	}
	fault.Point("replugged begins")
	errs := []error{p.Refused, b.switchEngines(ctx, j, p.Engines)}
	if err := j.BeginSet(replugging); err != nil {
		return "", err
	}
	for _, s := range p.Clear {
		if err := doIn(ctx, j, s); !errors.Is(err, unix.ENODEV) {
			errs = append(errs, err)
		}
	}
	for _, s := range p.Steps {
		errs = append(errs, doIn(ctx, j, s))
	}
	if err = errors.Join(errs...); err == nil {
		err = doIn(ctx, j, p.Record)
	}
	if err := errors.Join(err, j.EndSet()); err != nil {
		return "", err
	}
	return strings.Join(inspect.CameAndWent(p.Old, p.Record.New), ", "), nil
}

func doIn(ctx context.Context, j *step.Journal, s step.Step) error {
	if err := j.Do(ctx, s); err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return nil
}

// planReplug plans the change of replugged; nil if there is none. It changes nothing.
func (b *Berth) planReplug(name string) (*plan.Replugged, error) {
	old, err := device.ReadTable(b.Layout.Node(name).Devices())
	if err != nil || old.Empty() {
		return nil, err
	}
	if _, err := b.LiveInit(name); err != nil {
		return nil, nil //nolint:nilerr,nilnil // it does not run
	}
	now := old.Now(b.Host.Sys)
	if now.Equal(old) {
		return nil, nil //nolint:nilnil // nothing came or went
	}
	s, err := b.Stored(name)
	if err != nil {
		return nil, err
	}
	f, r := plan.Facts{Layout: b.Layout}, plan.Running{Table: old, Disks: map[string]block.Disk{}}
	if f.Host.Cgroups, err = b.cgroups(); err != nil {
		return nil, err
	}
	if !s.Now.IsMachine() {
		if r.Dev, err = b.Dev(name); err != nil {
			return nil, err
		}
	}
	for _, was := range plan.Left(old, now) {
		if d, err := block.OfNumber(b.Host.Sys, was.Major, was.Minor, was.Entry); err == nil { // else the kernel's limits went with the disk
			r.Disks[was.Entry] = d
		}
	}
	_, disks, err := inspect.Present(b.Layout, b.Host.Sys, plan.CameBack(s.Now, old, now), f.Host.Cgroups, now)
	f.Disks = disks
	p := plan.Replug(s.Now, f, r, now)
	p.Refused = errors.Join(err, p.Refused)
	return p, nil
}

// switchEngines switches disks that came back to the engines that the spec asks for; that is undone when the node stops.
func (b *Berth) switchEngines(ctx context.Context, j *step.Journal, engines []step.Step) error {
	for _, e := range engines {
		if err := doIn(ctx, j, e); err != nil {
			return err
		}
	}
	if len(engines) == 0 {
		return nil
	}
	return b.beside.Weigh(ctx)
}

func (b *Berth) lockAndReplug(ctx context.Context, name string) (string, error) {
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return "", err
	}
	defer l.release()
	j, err := b.Live(name)
	if err != nil || j.Phase != step.Up {
		return "", nil // it does not run, or repair is needed first
	}
	if j.Set != nil {
		if _, err := b.settleSet(ctx, name, j); err != nil {
			return "", err
		}
	}
	return b.replugged(ctx, name)
}

// reattach connects the interfaces of a node that runs again, if they have lost their connection. The caller holds its lock.
func (b *Berth) reattach(ctx context.Context, name string) (did string, err error) {
	j, err := b.Live(name)
	if err != nil {
		return "", nil //nolint:nilerr // it does not run
	}
	if _, err := b.LiveInit(name); err != nil {
		return "", nil //nolint:nilerr // likewise
	}
	s, err := b.Stored(name)
	if err != nil {
		return "", err
	}
	rates, err := plan.Rates(s.Now, plan.Facts{Layout: b.Layout})
	if err != nil {
		return "", err
	}
	mended, err := link.Reattach(ctx, j.Steps(), rates)
	if len(mended) > 0 {
		did = "connected again: " + strings.Join(mended, ", ")
	}
	return did, err
}

func (b *Berth) lockAndReattach(ctx context.Context, name string) (string, error) {
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return "", err
	}
	defer l.release()
	return b.reattach(ctx, name)
}

// keepHelpers watches the helpers of a node's gateways, and replaces one that ends, until ctx ends.
func (b *Berth) keepHelpers(ctx context.Context, k *keeper.Keeper, name string) {
	j, err := b.Live(name)
	if err != nil {
		return
	}
	for _, h := range gateway.Helpers(j.Steps()) {
		down := false // and told
		go gateway.Watch(ctx, h.Process(),
			func(ctx context.Context, ended proc.ID) (proc.ID, error) { return b.replaceHelper(ctx, name, ended) },
			func(ended proc.ID, err error) {
				if err != nil {
					k.Log.Error("replace a helper that ended", "node", name, "helper", h.String(), "pid", ended.PID, "err", err)
					if !down {
						b.tellServed(name, events.Unserved, "the process ended and was not replaced: "+h.String())
					}
					down = true
					return
				}
				down = false
				b.tellServed(name, events.Served, "the process ended and was replaced; what was open got an error: "+h.String())
				k.Log.Warn("a helper ended and was replaced", "node", name, "helper", h.String(), "pid", ended.PID)
			})
	}
}

// tellServed tells of the helper of a node's mount.
func (b *Berth) tellServed(name, event, what string) {
	_ = b.Events().Append([]events.Event{{Time: time.Now(), Node: name, Event: event, Text: what}}, false) // the log has it too
}

// replaceHelper does the step of a helper again whose process has ended, and returns the identity of the new one.
func (b *Berth) replaceHelper(ctx context.Context, name string, ended proc.ID) (proc.ID, error) {
	l, err := b.lockThere(ctx, name)
	if err != nil {
		return proc.ID{}, err
	}
	if l == nil {
		return proc.ID{}, refuse.NotFoundf("node %s is gone", name)
	}
	defer l.release()
	j, err := b.Live(name)
	if err != nil {
		return proc.ID{}, err
	}
	return redoHelper(ctx, j, ended)
}

func redoHelper(ctx context.Context, j *step.Journal, ended proc.ID) (proc.ID, error) {
	helpers := gateway.Helpers(j.Steps())
	i := slices.IndexFunc(helpers, func(h gateway.Helper) bool { return h.Process() == ended })
	if j.Phase != step.Up || i < 0 {
		return proc.ID{}, fmt.Errorf("node %s has no helper %d any more", j.Node, ended.PID)
	}
	err := j.Redo(ctx, helpers[i])
	return helpers[i].Process(), err
}
