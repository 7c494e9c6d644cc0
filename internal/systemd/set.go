package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/refuse"
	"berth/internal/step"
)

// Set is a step that sets properties of a unit, now and for its next starts. Its Undo gives back the values and the
// files that were there.
type Set struct {
	Unit       string     `json:"unit"`
	Properties []Property `json:"properties"`
}

// Property is one property that Set changes.
type Property struct {
	Name  string  `json:"name"`
	Value string  `json:"value"`          // as systemctl set-property takes it, and systemctl show prints it
	Was   string  `json:"was"`            // as systemctl show had it before; of a list, an entry a line
	File  *string `json:"file,omitempty"` // the drop-in that it had before; nil: none
}

// Kind is "systemd.set".
func (s *Set) Kind() string { return "systemd.set" }

// String is "xrootd.service CPUWeight=1000 IOWeight=1000".
func (s *Set) String() string { return s.Unit + " " + strings.Join(s.assignments(), " ") }

func (s *Set) assignments() []string {
	all := make([]string, len(s.Properties))
	for i, p := range s.Properties {
		all[i] = p.Name + "=" + p.Value
	}
	return all
}

// Look asks the manager for the unit and what it has of these properties now.
func (s *Set) Look(ctx context.Context) (Unit, error) {
	names := make([]string, len(s.Properties))
	for i, p := range s.Properties {
		names[i] = p.Name
	}
	return Look(ctx, s.Unit, names...)
}

// Holds reports whether got, of systemctl show, is the value that was set. What was set of a list is its last entry.
func (p *Property) Holds(got string) bool {
	return got == p.Value || strings.HasSuffix(got, "\n"+p.Value)
}

// Prepare records the values and the files that are there.
func (s *Set) Prepare(ctx context.Context) error {
	u, err := s.Look(ctx)
	if err != nil {
		return err
	}
	for i := range s.Properties {
		p := &s.Properties[i]
		p.Was = u.Properties[p.Name]
		if p.File, err = read(dropIn(s.Unit, p.Name)); err != nil {
			return err
		}
	}
	return nil
}

// Do sets all of them in one call: systemd takes all or none.
func (s *Set) Do(ctx context.Context) error { return setProperties(ctx, s.Unit, s.assignments()) }

func setProperties(ctx context.Context, unit string, assignments []string) error {
	_, err := systemctl(ctx, append([]string{"set-property", "--", unit}, assignments...)...)
	return err
}

// Verify asks the manager for them again.
func (s *Set) Verify(ctx context.Context) error {
	u, err := s.Look(ctx)
	if err != nil {
		return err
	}
	for _, p := range s.Properties {
		if got := u.Properties[p.Name]; !p.Holds(got) {
			return fmt.Errorf("set %s of %s to %s: systemd says %q", p.Name, s.Unit, p.Value, got)
		}
	}
	return nil
}

// Undo sets what was, which takes effect at once, and puts the files back. A unit that is gone has only files.
func (s *Set) Undo(ctx context.Context) error {
	_, err := s.Look(ctx)
	there := err == nil
	if err != nil && refuse.KindOf(err) != refuse.NotFound {
		return err
	}
	for _, p := range s.Properties {
		if there {
			if err := setProperties(ctx, s.Unit, p.back()); err != nil {
				return err
			}
			step.Fault("property given back")
		}
		if err := p.restoreFile(s.Unit); err != nil {
			return err
		}
		step.Fault("drop-in given back")
	}
	_ = os.Remove(filepath.Join(controlDir, s.Unit+".d")) // stays if others' drop-ins are in it
	_, err = systemctl(ctx, "daemon-reload")
	return err
}

// back is what sets the value that was: for a list, none and then its entries.
func (p *Property) back() []string {
	if p.Was == "[not set]" || p.Was == "" {
		return []string{p.Name + "="}
	}
	if !strings.HasPrefix(p.Name, "IODevice") {
		return []string{p.Name + "=" + p.Was}
	}
	all := []string{p.Name + "="}
	for line := range strings.Lines(p.Was) {
		all = append(all, p.Name+"="+strings.TrimSpace(line))
	}
	return all
}

// restoreFile puts the drop-in back that was there, or removes the one that set-property made.
func (p *Property) restoreFile(unit string) error {
	path := dropIn(unit, p.Name)
	if p.File == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove drop-in: %w", err)
		}
		return nil
	}
	tmp := path + ".berth" // systemd reads files that end in .conf
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("restore drop-in: %w", err)
	}
	if err := os.WriteFile(tmp, []byte(*p.File), 0o644); err != nil {
		return fmt.Errorf("restore drop-in: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("restore drop-in: %w", err)
	}
	return nil
}
