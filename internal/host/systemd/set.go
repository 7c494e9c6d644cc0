package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
)

// Set is a step that sets properties of a unit, for now and for its later starts. Its Undo restores the old values and files.
type Set struct {
	Unit       string     `json:"unit"`
	Properties []Property `json:"properties"`
}

// Property is one property that Set changes.
type Property struct {
	Name  string  `json:"name"`
	Value string  `json:"value"`          // as systemctl set-property takes it, and systemctl show prints it
	Was   string  `json:"was"`            // as systemctl show had it before; a list has an entry on each line
	File  *string `json:"file,omitempty"` // content of the property's drop-in before; nil: none
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

// Look asks the manager for the unit and the current values of these properties.
func (s *Set) Look(ctx context.Context) (Unit, error) {
	names := make([]string, len(s.Properties))
	for i, p := range s.Properties {
		names[i] = p.Name
	}
	return Look(ctx, s.Unit, names...)
}

// Holds reports whether got, from systemctl show, has the value that was set: in a list, as its last entry.
func (p *Property) Holds(got string) bool {
	return got == p.Value || strings.HasSuffix(got, "\n"+p.Value)
}

// Kept says where a property is not kept below dir, ControlDir or TransientDir, for the next time that systemd reads its files: its drop-in is gone, or has another
// value. "" if it is.
func (s *Set) Kept(dir string, p Property) (why string, err error) {
	path := DropIn(dir, s.Unit, p.Name)
	text, err := read(path)
	if err != nil {
		return "", err
	}
	if text == nil {
		return path + " is gone, and with it the value at the next start of systemd, or daemon-reload", nil
	}
	has := ""
	for line := range strings.Lines(*text) { // of several the last holds
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), p.Name+"="); ok {
			has = value
		}
	}
	if has != p.Value {
		return fmt.Sprintf("%s has %q, which holds from the next start of systemd, or daemon-reload", path, has), nil
	}
	return "", nil
}

// Prepare records the current values and drop-ins.
func (s *Set) Prepare(ctx context.Context) error {
	u, err := s.Look(ctx)
	if err != nil {
		return err
	}
	for i := range s.Properties {
		p := &s.Properties[i]
		p.Was = u.Properties[p.Name]
		if p.File, err = read(DropIn(ControlDir, s.Unit, p.Name)); err != nil {
			return err
		}
	}
	return nil
}

// Do sets all properties in one call: systemd sets all or none.
func (s *Set) Do(ctx context.Context) error { return setProperties(ctx, s.Unit, s.assignments()) }

func setProperties(ctx context.Context, unit string, assignments []string) error {
	_, err := systemctl(ctx, append([]string{"set-property", "--", unit}, assignments...)...)
	return err
}

// Verify reads the properties back from the manager.
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

// OnDisk implements step.Lasting. systemd writes the files of a unit, and does not wait for the disk.
func (s *Set) OnDisk() error { return s.syncFiles(ControlDir) }

// syncFiles returns when the drop-ins below dir, those that are there and those that are not, are on the disk.
func (s *Set) syncFiles(dir string) error {
	var files []string
	for _, p := range s.Properties {
		files = append(files, DropIn(dir, s.Unit, p.Name))
	}
	for _, path := range append(files, filepath.Join(dir, s.Unit+".d"), dir) {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return fmt.Errorf("write the drop-ins of %s to the disk: %w", s.Unit, err)
		}
	}
	return nil
}

// Undo sets the old values, which takes effect at once, and restores the files. If the unit is gone, it restores only the files.
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
			fault.Point("property given back")
		}
		if err := p.restoreFile(s.Unit); err != nil {
			return err
		}
		fault.Point("drop-in given back")
	}
	_ = os.Remove(filepath.Join(ControlDir, s.Unit+".d")) // fails, and the folder stays, if other drop-ins are in it
	if err := s.syncFiles(ControlDir); err != nil {       // before the journal forgets them
		return err
	}
	_, err = systemctl(ctx, "daemon-reload")
	return err
}

// back returns the assignments that restore the old value: for a list, the empty value and then its entries.
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

// restoreFile restores the old drop-in, or removes the one that set-property made.
func (p *Property) restoreFile(unit string) error {
	path := DropIn(ControlDir, unit, p.Name)
	if p.File == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove drop-in: %w", err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("restore drop-in: %w", err)
	}
	if err := file.Write(path, []byte(*p.File), 0o644); err != nil { // the temporary file does not end in .conf: systemd does not read it
		return fmt.Errorf("restore drop-in: %w", err)
	}
	return nil
}
