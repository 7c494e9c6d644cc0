package node

import (
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

	"berth/internal/block"
	"berth/internal/cgroup"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/systemd"
	"berth/internal/vnode"
)

// Protected is a service of the host that has class storage: a unit of systemd, a cgroup, or a process and those that it
// started, in a cgroup made for them.
type Protected struct {
	Name   string         `json:"name"`  // as unprotect takes it: "xrootd.service", "1234", "/system.slice/x"
	State  string         `json:"state"` // always "protected": tells it from a node in berth ls --json
	Kind   string         `json:"kind"`  // unit | process | cgroup
	Class  vnode.Class    `json:"class"`
	Cgroup string         `json:"cgroup,omitempty"` // relative to each hierarchy's mount; "" while a unit does not run
	PIDs   []int          `json:"pids,omitempty"`
	Since  time.Time      `json:"since"`
	Gone   bool           `json:"gone,omitempty"` // the process or cgroup has ended: berth repair forgets it
	Values []cgroup.Shown `json:"values,omitempty"`

	Settled []Repaired `json:"-"` // by protect: what was to be said of others
}

// The kinds of protected services.
const (
	protectedUnit    = "unit"
	protectedProcess = "process"
	protectedCgroup  = "cgroup"
)

// Protect gives a service of the host class storage, where it is. What was is journalled before the first change.
func (b *Berth) Protect(ctx context.Context, asked string, want Protection) (*Protected, error) {
	l, err := b.lockProtected(ctx)
	if err != nil {
		return nil, err
	}
	defer l.release()
	settled, unsettled := b.settleProtected(ctx)
	t, err := b.findTarget(ctx, asked)
	if err != nil {
		return nil, err
	}
	if unsettled != nil { // the others' affair, but for what is said below
		settled = append(settled, Repaired{Did: unsettled.Error()})
	}
	if _, err := os.Stat(t.journal(b)); err == nil {
		if unsettled != nil {
			return nil, unsettled
		}
		return nil, refuse.Busyf("%s is protected already; berth unprotect %s gives back what was", t.name, t.name)
	}
	steps, err := b.protectSteps(t, want)
	if err != nil {
		return nil, err
	}
	boot, err := step.BootID()
	if err != nil {
		return nil, err
	}
	j, err := step.Create(t.journal(b), t.name, boot)
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
	if err := errors.Join(b.weighAgain(ctx), b.settleSlices(ctx), b.settleBoot()); err != nil {
		return nil, fmt.Errorf("%s is protected, but: %w; berth repair tries again", t.name, err)
	}
	p, err := b.readProtected(ctx, t.kind, t.name)
	if err == nil {
		p.Settled = settled
	}
	return p, err
}

// Unprotect gives a service back what it had before.
func (b *Berth) Unprotect(ctx context.Context, asked string) error {
	l, err := b.lockProtected(ctx)
	if err != nil {
		return err
	}
	defer l.release()
	for _, t := range namesOf(asked) {
		j, err := step.Open(t.journal(b), b.kinds)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := j.Close(ctx); err != nil {
			return fmt.Errorf("give %s back what it had: %w", t.name, err)
		}
		return errors.Join(b.settleSlices(ctx), b.settleBoot())
	}
	return refuse.NotFoundf("%s is not protected; berth ls lists what is", asked)
}

// lockProtected makes the folder of the journals and locks it: one command at a time.
func (b *Berth) lockProtected(ctx context.Context) (*lock, error) {
	if err := b.makeDirs(); err != nil {
		return nil, err
	}
	dir := b.Layout.Protected()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := flock(ctx, f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return &lock{f: f}, nil
}

// journal is where what was done to the target is written.
func (t *target) journal(b *Berth) string {
	return filepath.Join(b.Layout.Protected(), url.PathEscape(t.kind+":"+t.name))
}

// journals lists what is protected, or half so.
func (b *Berth) journals() ([]target, error) {
	entries, err := os.ReadDir(b.Layout.Protected())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list what is protected: %w", err)
	}
	var all []target
	for _, e := range entries {
		text, err := url.PathUnescape(e.Name())
		if err != nil {
			continue
		}
		if kind, name, ok := strings.Cut(text, ":"); ok {
			all = append(all, target{kind: kind, name: name})
		}
	}
	return all, nil
}

// Protected lists the services of the host that are protected, as the kernel has them now.
func (b *Berth) Protected(ctx context.Context) ([]Protected, error) {
	targets, err := b.journals()
	if err != nil {
		return nil, err
	}
	var all []Protected
	for _, t := range targets {
		p, err := b.readProtected(ctx, t.kind, t.name)
		if errors.Is(err, fs.ErrNotExist) { // unprotected meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b Protected) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (b *Berth) readProtected(ctx context.Context, kind, name string) (*Protected, error) {
	t := target{kind: kind, name: name}
	j, err := step.Open(t.journal(b), b.kinds)
	if err != nil {
		return nil, err
	}
	p := &Protected{Name: name, State: "protected", Kind: kind, Class: vnode.Storage}
	if fi, err := os.Stat(t.journal(b)); err == nil {
		p.Since = fi.ModTime()
	}
	cg, err := b.cgroups()
	if err != nil {
		return nil, err
	}
	for _, s := range j.Steps() {
		switch s := s.(type) {
		case *cgroup.Adopt:
			p.Cgroup, p.Gone = s.Path, !alive(s.PID, s.Start)
		case *block.Engine:
			p.Values = append(p.Values, showEngine(ctx, s))
		case *cgroup.Class:
			p.Values = append(p.Values, s.Show()...)
		case *cgroup.Foreign:
			p.Cgroup, p.Values = s.Path, append(p.Values, s.Show()...)
		case *systemd.Set:
			if kind == protectedUnit && s.Unit == name {
				group, values := unitNow(ctx, s)
				p.Cgroup, p.Values = group, append(p.Values, values...)
			}
		}
	}
	if kind == protectedCgroup && !cgroup.There(cg, p.Cgroup) {
		p.Gone = true
	}
	if p.Cgroup != "" && !p.Gone {
		p.PIDs, err = cgroup.Procs(cg, p.Cgroup)
	}
	return p, err
}

// unitNow asks systemd what a unit has now.
func unitNow(ctx context.Context, s *systemd.Set) (group string, values []cgroup.Shown) {
	now, err := s.Look(ctx)
	for _, p := range s.Properties {
		v := cgroup.Shown{Key: p.Name, Asked: p.Value, HonouredBy: "systemd", Holds: true}
		if err == nil {
			v.ReadBack = now.Properties[p.Name]
			v.Holds = p.Holds(v.ReadBack)
		}
		values = append(values, v)
	}
	return strings.TrimPrefix(now.ControlGroup, "/"), values
}

// repairProtected is settleProtected for those who do not hold the lock.
func (b *Berth) repairProtected(ctx context.Context) ([]Repaired, error) {
	if _, err := os.Stat(b.Layout.Protected()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	l, err := b.lockProtected(ctx)
	if err != nil {
		return nil, err
	}
	defer l.release()
	return b.settleProtected(ctx)
}

// settleProtected finishes what a killed command began, and forgets what has ended. The caller holds the lock.
func (b *Berth) settleProtected(ctx context.Context) ([]Repaired, error) {
	targets, err := b.journals()
	if err != nil {
		return nil, err
	}
	boot, err := step.BootID()
	if err != nil {
		return nil, err
	}
	var all []Repaired
	var errs []error
	for _, t := range targets {
		did, err := b.settleTarget(ctx, t, boot)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
		}
		if did != "" {
			all = append(all, Repaired{Node: t.name, Did: did})
		}
	}
	if systemd.Running() {
		errs = append(errs, b.settleSlices(ctx))
	}
	errs = append(errs, b.settleBoot(), b.weighAgain(ctx))
	return all, errors.Join(errs...)
}

func (b *Berth) settleTarget(ctx context.Context, t target, boot string) (did string, err error) {
	j, err := step.Open(t.journal(b), b.kinds)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case j.Phase == step.Creating:
		return "given back what it had: berth protect was interrupted", j.Close(ctx)
	case j.Phase == step.Removing:
		return "given back what it had: berth unprotect was interrupted", j.Close(ctx)
	case t.kind != protectedUnit && j.Boot != boot:
		return "forgotten: the host was booted since, its cgroup is gone", os.Remove(t.journal(b))
	}
	p, err := b.readProtected(ctx, t.kind, t.name)
	switch {
	case err != nil:
		return "", err
	case p.Gone && len(p.PIDs) == 0:
		return "forgotten: it has ended", j.Close(ctx)
	}
	return b.enginesAgain(ctx, j), nil
}
