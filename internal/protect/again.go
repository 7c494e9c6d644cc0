package protect

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth/internal/standing"
	"berth/internal/step"
	"berth/internal/systemd"
)

// lose notes what of the values does not hold; none does where the process is elsewhere.
func (p *Service) lose(moved string) {
	if moved != "" {
		p.Lost = append(p.Lost, moved)
	}
	for i, l := range p.Values {
		switch {
		case strings.HasPrefix(l.Key, "disk "): // said for itself
		case moved != "" && l.Holds:
			p.Values[i].Holds, p.Values[i].Why = false, moved
		case !l.Holds && l.Why != "":
			p.Lost = append(p.Lost, l.Key+": "+l.Why)
		case !l.Holds && l.ReadBack != "":
			p.Lost = append(p.Lost, fmt.Sprintf("%s is %s, not %s", l.Key, l.ReadBack, l.Asked))
		}
	}
}

// giveAgain does again what another program has undone of a service's protection, and says what that was.
func (v *Services) giveAgain(ctx context.Context, j *step.Journal, lost []string) (did string, err error) {
	if len(lost) == 0 {
		return "", nil
	}
	for _, s := range j.Steps() {
		switch s := s.(type) {
		case *standing.Adopt:
			if s.Lost() != "" {
				err = j.Redo(ctx, s)
			}
		case *standing.Class:
			if s.Verify(ctx) != nil {
				err = step.Do(ctx, s)
			}
		case *standing.Foreign:
			var had []string
			if had, err = s.Again(); err == nil && len(had) > 0 {
				err = j.Redo(ctx, s)
			}
		case *systemd.Set:
			if u, lookErr := s.Look(ctx); lookErr == nil && slices.ContainsFunc(s.Properties, func(p systemd.Property) bool { return !p.Holds(u.Properties[p.Name]) }) {
				err = step.Do(ctx, s)
			}
		}
		if err != nil {
			return "", fmt.Errorf("give back what another program has changed (%s): %w", strings.Join(lost, ", "), err)
		}
	}
	return "given back what another program had changed: " + strings.Join(lost, ", "), nil
}
