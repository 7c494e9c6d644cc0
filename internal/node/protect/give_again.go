package protect

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"berth/internal/host/group"
	"berth/internal/host/systemd"
	"berth/internal/limit/weight"
	"berth/internal/sys/step"
)

// lose notes the values that do not hold; none does if the process is in another group.
func (p *Service) lose(moved string) {
	if moved != "" {
		p.Lost = append(p.Lost, moved)
	}
	for i, l := range p.Values {
		switch {
		case strings.HasPrefix(l.Key, "disk "): // said for itself
		case moved != "" && l.Holds:
			p.Values[i].Holds, p.Values[i].Why = false, moved
		case !l.Holds && (l.Why != "" || l.ReadBack != ""):
			p.Lost = append(p.Lost, lostText(l))
		}
	}
}

// eachLost calls f for each step of a service that another program has undone, until it returns an error. A cgroup comes before the
// values written into it. What is refused of a unit and of the slices above it comes last, and does not hold up the rest.
func (v *Services) eachLost(ctx context.Context, j *step.Journal, f func(step.Step) error) error {
	adopted := false
	var refused error
	for _, s := range j.Steps() {
		lost := false
		var err error
		switch s := s.(type) {
		case *weight.Adopt:
			lost = s.Lost() != ""
			adopted = lost
		case *weight.Class:
			var off *group.Enable
			if off, err = s.Disabled(); off != nil {
				err = f(off)
			}
			lost = adopted || off != nil || s.Verify(ctx) != nil
		case *weight.Foreign:
			var had []string
			had, err = s.Again()
			lost = len(had) > 0
		case *systemd.Set:
			var steps []step.Step
			steps, refused = v.lostOfUnit(ctx, s)
			for _, one := range steps {
				err = errors.Join(err, f(one))
			}
		}
		if err == nil && lost {
			err = f(s)
		}
		if err != nil {
			return err
		}
	}
	if given(j)[j.Node] == 0 {
		return refused
	}
	above, _, err := v.lostOfSlices(ctx)
	for _, s := range above {
		err = errors.Join(err, f(s))
	}
	return errors.Join(refused, err)
}

// giveAgain restores the parts of a service's protection that another program has undone, and says which they were.
func (v *Services) giveAgain(ctx context.Context, j *step.Journal, lost []string) (did string, err error) {
	if len(lost) == 0 {
		return "", nil
	}
	err = v.eachLost(ctx, j, func(s step.Step) error {
		switch s.(type) {
		case *weight.Adopt, *weight.Foreign: // they record the former values anew
			return j.Redo(ctx, s)
		}
		err := step.Do(ctx, s)
		if l, ok := s.(step.Lasting); ok && err == nil {
			err = l.OnDisk()
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("give back what another program has changed (%s): %w", strings.Join(lost, ", "), err)
	}
	return "given back what another program had changed: " + strings.Join(lost, ", "), nil
}

// planAgainOf returns the steps that Protect would do again for a service that is protected: none if it has all, or is not there.
func (v *Services) planAgainOf(ctx context.Context, t target, j *step.Journal) (steps []step.Step, err error) {
	if j.Phase != step.Up {
		return nil, nil
	}
	p, err := v.read(ctx, t, j)
	if err != nil || p.Gone {
		return nil, err
	}
	steps, off := v.planEngines(ctx, j)
	if len(p.Lost) == 0 {
		return steps, off
	}
	err = v.eachLost(ctx, j, func(s step.Step) error { steps = append(steps, s); return nil })
	return steps, err
}
