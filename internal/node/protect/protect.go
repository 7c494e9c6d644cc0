// Package protect gives class storage to services that run on this host beside the nodes, and restores what they had before.
package protect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/host/systemd"
	"berth/internal/limit/weight"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/lock"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Services are the services of this host that have class storage. Each has a journal of the changes made for it.
type Services struct {
	layout  layout.Layout
	kinds   step.Kinds
	control string // systemd.ControlDir, but in tests

	transient string // systemd.TransientDir, but in tests

	look func(ctx context.Context, unit string, properties ...string) (systemd.Unit, error) // systemd.Look, but in tests
}

// New returns the protected services of one layout. It makes nothing.
func New(l layout.Layout) *Services {
	kinds := step.Join(block.Kinds(), group.Kinds(), weight.Kinds(), systemd.Kinds())
	return &Services{layout: l, kinds: kinds, control: systemd.ControlDir, transient: systemd.TransientDir, look: systemd.Look}
}

// open reads a journal of services. Its changes outlive the boot.
func (v *Services) open(path string) (*step.Journal, error) {
	j, err := step.Open(path, v.kinds)
	if err == nil {
		j.Lasts = true
	}
	return j, err
}

// create begins a journal, and returns when the disk has it: so that no service was changed whose journal is empty after a
// power cut.
func create(path, name, boot string) (*step.Journal, error) {
	j, err := step.Create(path, name, boot)
	if err != nil {
		return nil, err
	}
	j.Lasts = true
	if err := j.Sync(); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return j, nil
}

// Service is a service of the host that has class storage: a unit of systemd, a cgroup, or a process and those that it
// started, in a cgroup made for them.
type Service struct {
	Name   string        `json:"name"`  // as unprotect takes it: "xrootd.service", "1234", "/system.slice/x"
	State  string        `json:"state"` // always "protected": tells it from a node in berth ls --json
	Kind   string        `json:"kind"`  // unit | process | cgroup
	Class  vnode.Class   `json:"class"`
	Cgroup string        `json:"cgroup,omitempty"` // relative to each hierarchy's mount; "" while a unit does not run
	PIDs   []int         `json:"pids,omitempty"`
	Since  time.Time     `json:"since"`
	Gone   bool          `json:"gone,omitempty"` // the process or cgroup has ended: berth repair forgets it
	Values []proof.Limit `json:"values,omitempty"`
	Lost   []string      `json:"lost,omitempty"` // values that another program has changed since: "cpu is 77, not weight 1000"

	Damaged string `json:"damaged,omitempty"` // why its journal cannot be used, and the remedy; nothing else is known of the service then

	Settled []Repaired `json:"-"` // repairs of other services that Protect did before
}

// Repaired reports the repair of one service.
type Repaired struct {
	Name string
	Did  string
}

// The kinds of protected services.
const (
	kindUnit    = "unit"
	kindProcess = "process"
	kindCgroup  = "cgroup"
)

// Plan returns the steps by which Protect would protect a service, or restore what a protected one has lost. It changes nothing. Afterwards
// Protect also sets the weights of the nodes and services that share the service's disks, and the memory that is protected in the slices
// above it.
func (v *Services) Plan(ctx context.Context, asked string, want Options) ([]step.Step, error) {
	for _, t := range namesOf(asked) {
		j, err := v.journalOf(t)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if again, err := v.planAgainOf(ctx, t, j); err != nil || len(again) > 0 {
			return again, err
		}
	}
	t, err := v.findTarget(ctx, asked)
	if err != nil {
		return nil, err
	}
	if err := v.checkFree(t); err != nil {
		return nil, err
	}
	return v.steps(ctx, t, want)
}

func (v *Services) checkFree(t *target) error {
	_, err := v.journalOf(*t)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return refuse.Busyf("%s is protected already; berth unprotect %s gives back what was", t.name, t.name)
}

// Protect gives a service of the host class storage, in the group in which it runs. The former values are journalled before the
// first change.
func (v *Services) Protect(ctx context.Context, asked string, want Options) (*Service, error) {
	l, err := v.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	settled, failed, unsettled := v.settle(ctx)
	for _, t := range namesOf(asked) {
		if _, err := os.Stat(t.journal(v)); err != nil {
			continue
		}
		if failed[t.name] != nil {
			return nil, failed[t.name]
		}
		if slices.ContainsFunc(settled, func(r Repaired) bool { return r.Name == t.name }) {
			return v.readSettled(ctx, &t, settled) // it is protected, and had not all that it was given
		}
	}
	t, err := v.findTarget(ctx, asked)
	if err != nil {
		return nil, err
	}
	if unsettled != nil { // errors of the other services do not stop this one, but for the ones below
		settled = append(settled, Repaired{Did: unsettled.Error()})
	}
	if err := v.checkFree(t); err != nil {
		return nil, cmp.Or(failed[t.name], err)
	}
	steps, err := v.steps(ctx, t, want)
	if err != nil {
		return nil, err
	}
	boot, err := step.BootID()
	if err != nil {
		return nil, err
	}
	j, err := create(t.journal(v), t.name, boot)
	if err != nil {
		return nil, err
	}
	for _, s := range steps {
		if err := j.Do(ctx, s); err != nil {
			err = fmt.Errorf("protect %s: %w", t.name, err)
			if back := j.Close(context.WithoutCancel(ctx)); back != nil {
				return nil, fmt.Errorf("%w; taking it back failed too: %w; berth repair tries again", err, back)
			}
			return nil, err
		}
	}
	if err := j.SetPhase(step.Up); err != nil {
		return nil, errors.Join(err, j.Close(context.WithoutCancel(ctx)))
	}
	errs := []error{v.weighAgain(ctx), v.settleBoot()}
	if want.MemoryLow > 0 {
		errs = append(errs, v.settleSlices(ctx))
	}
	if p, err := v.readSettled(ctx, t, settled); err == nil && len(p.Lost) > 0 { // systemd does not look whether the kernel has what it was asked for
		_, err := v.giveAgain(ctx, j, p.Lost)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s is protected, but: %w; berth repair tries again", t.name, err)
	}
	return v.readSettled(ctx, t, settled)
}

func (v *Services) readSettled(ctx context.Context, t *target, settled []Repaired) (*Service, error) {
	j, err := v.journalOf(*t)
	if err != nil {
		return nil, err
	}
	p, err := v.read(ctx, *t, j)
	if err == nil {
		p.Settled = settled
	}
	return p, err
}

// Unprotect restores the values that a service had before. It returns what could not be as it was, in words for a person.
func (v *Services) Unprotect(ctx context.Context, asked string) (notes []string, err error) {
	l, err := v.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	for _, t := range namesOf(asked) {
		j, err := v.journalOf(t)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		low := given(j)[t.name]
		steps := j.Steps()
		if err := j.Close(ctx); err != nil {
			return nil, fmt.Errorf("give %s back what it had: %w", t.name, err)
		}
		for _, s := range steps {
			if a, ok := s.(*weight.Adopt); ok {
				notes = append(notes, a.Elsewhere...)
			}
		}
		errs := []error{v.settleBoot()}
		if low > 0 {
			errs = append(errs, v.settleSlices(ctx))
		}
		return notes, errors.Join(errs...)
	}
	return nil, refuse.NotFoundf("%s is not protected; berth ls lists what is", asked)
}

// lock makes the folder of the journals and locks it: one command at a time.
func (v *Services) lock(ctx context.Context) (*os.File, error) {
	if err := v.layout.Make(); err != nil {
		return nil, err
	}
	dir := v.layout.Protected()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	return lock.OpenDir(ctx, dir)
}

// journal returns the path of the journal of the changes to a target.
func (t *target) journal(v *Services) string {
	return filepath.Join(v.layout.Protected(), url.PathEscape(t.kind+":"+t.name))
}

// Repair finishes the work of killed commands, forgets services that have ended, and switches disks to their engines again.
func (v *Services) Repair(ctx context.Context) ([]Repaired, error) {
	if _, err := os.Stat(v.layout.Protected()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	l, err := v.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	did, _, err := v.settle(ctx)
	return did, err
}

// settle finishes the work of a killed command, and forgets services that have ended. err joins all errors; failed has those of single
// services, by name. The caller holds the lock.
func (v *Services) settle(ctx context.Context) (all []Repaired, failed map[string]error, err error) {
	targets, err := v.journals()
	if err != nil {
		return nil, nil, err
	}
	boot, err := step.BootID()
	if err != nil {
		return nil, nil, err
	}
	failed = map[string]error{}
	var errs []error
	for _, t := range targets {
		did, err := v.settleTarget(ctx, t, boot)
		if err != nil {
			failed[t.name] = fmt.Errorf("%s: %w", t.name, err)
			errs = append(errs, failed[t.name])
		}
		if did != "" {
			all = append(all, Repaired{Name: t.name, Did: did})
		}
	}
	if systemd.Running() {
		errs = append(errs, v.settleSlices(ctx))
	}
	errs = append(errs, v.settleBoot(), v.weighAgain(ctx))
	return all, failed, errors.Join(errs...)
}

func (v *Services) settleTarget(ctx context.Context, t target, boot string) (did string, err error) {
	j, err := v.journalOf(t)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case j.Empty():
		return "forgotten: berth protect was interrupted before it changed anything", os.Remove(t.journal(v))
	case t.kind != kindUnit && j.Boot != boot:
		return "forgotten: the host was booted since, its cgroup is gone", os.Remove(t.journal(v))
	case j.Phase == step.Creating:
		return "given back what it had: berth protect was interrupted", j.Close(ctx)
	case j.Phase == step.Removing:
		return "given back what it had: berth unprotect was interrupted", j.Close(ctx)
	}
	p, err := v.read(ctx, t, j)
	switch {
	case err != nil:
		return "", err
	case p.Gone && len(p.PIDs) == 0:
		return "forgotten: it has ended", j.Close(ctx)
	}
	did = v.enginesAgain(ctx, j)
	again, err := v.giveAgain(ctx, j, p.Lost)
	return strings.Trim(did+"; "+again, "; "), err
}
