package protect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/host/systemd"
	"berth/internal/limit/weight"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

// journals lists the journals of services that are protected, wholly or in part.
func (v *Services) journals() ([]target, error) {
	entries, err := os.ReadDir(v.layout.Protected())
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

// All lists the services of the host that are protected, as the kernel has them now.
func (v *Services) All(ctx context.Context) ([]Service, error) {
	targets, err := v.journals()
	if err != nil {
		return nil, err
	}
	var all []Service
	for _, t := range targets {
		j, err := v.journalOf(t)
		if errors.Is(err, fs.ErrNotExist) { // unprotected meanwhile
			continue
		}
		if err != nil {
			all = append(all, Service{Name: t.name, State: "protected", Kind: t.kind, Class: vnode.Storage, Since: t.since(v), Damaged: err.Error()})
			continue
		}
		p, err := v.read(ctx, t, j)
		if err != nil {
			return nil, err
		}
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b Service) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// since is when the journal of a service was written last; the zero time if it is gone.
func (t *target) since(v *Services) (at time.Time) {
	if fi, err := os.Stat(t.journal(v)); err == nil {
		at = fi.ModTime()
	}
	return at
}

// read asks the kernel and systemd which of the values in a service's journal it has.
func (v *Services) read(ctx context.Context, t target, j *step.Journal) (*Service, error) {
	p := &Service{Name: t.name, State: "protected", Kind: t.kind, Class: vnode.Storage, Since: t.since(v)}
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return nil, err
	}
	moved := ""
	for _, s := range j.Steps() {
		switch s := s.(type) {
		case *weight.Adopt:
			moved = s.Lost()
			p.Cgroup, p.Gone = s.Path, !proc.ID{PID: s.PID, Start: s.Start}.Alive()
		case *block.Engine:
			p.Values = append(p.Values, showEngine(ctx, s))
		case *weight.Class:
			p.Values = append(p.Values, s.Show()...)
		case *weight.Foreign:
			p.Cgroup, p.Values = s.Path, append(p.Values, s.Show()...)
		case *systemd.Set:
			if t.kind == kindUnit && s.Unit == t.name {
				u, err := s.Look(ctx)
				if err != nil { // nothing is known of it
					u = systemd.Unit{}
				}
				r, err2 := returnOf(u, cg)
				if err2 != nil {
					return nil, err2
				}
				moved = movedBy(r)
				p.Cgroup, p.Values = strings.TrimPrefix(u.ControlGroup, "/"), append(p.Values, v.valuesOf(s, u, cg)...)
			}
		}
	}
	if !p.Gone {
		p.lose(moved)
		if given(j)[t.name] > 0 {
			_, lost, _ := v.lostOfSlices(ctx) // the command that settles the slices says what is refused
			p.Lost = append(p.Lost, lost...)
		}
	}
	if t.kind == kindCgroup && !group.There(cg, p.Cgroup) {
		p.Gone = true
	}
	if p.Cgroup != "" && !p.Gone {
		p.PIDs, err = group.Procs(cg, p.Cgroup)
	}
	return p, err
}
