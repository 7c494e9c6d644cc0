package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/step"
)

// UnitDir is where an administrator's units are (systemd.unit(5)).
const UnitDir = "/etc/systemd/system"

// AtBoot is a unit that runs a command once at each boot.
type AtBoot struct {
	Dir   string // UnitDir
	Name  string // berth-vfs.service
	By    string // who writes and who removes it: "berth vf enable; berth vf disable removes it with the last adapter"
	About string // its description
	Order string // lines that say between what it runs
	Args  []string
}

// Path is the unit's file.
func (u AtBoot) Path() string { return filepath.Join(u.Dir, u.Name) }

// wants is the symbolic link by which the unit is enabled.
func (u AtBoot) wants() string { return filepath.Join(u.Dir, "multi-user.target.wants", u.Name) }

// Text is what is in the file.
func (u AtBoot) Text() string {
	return `# Written by ` + u.By + `.
[Unit]
Description=` + u.About + `
` + u.Order + `
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=` + quoted(u.Args) + `

[Install]
WantedBy=multi-user.target
`
}

// quoted writes a command line as systemd.service(5) reads it.
func quoted(args []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, `$`, `$$`)
	out := make([]string, len(args))
	for i, a := range args {
		if out[i] = escape.Replace(a); a == "" || strings.ContainsAny(a, " \t'\";") {
			out[i] = `"` + out[i] + `"`
		}
	}
	return strings.Join(out, " ")
}

// Write writes and enables the unit. systemd reads it at the next boot.
func (u AtBoot) Write() error {
	if err := os.MkdirAll(filepath.Dir(u.wants()), 0o755); err != nil {
		return fmt.Errorf("write unit %s: %w", u.Name, err)
	}
	tmp := u.Path() + ".tmp"
	if err := os.WriteFile(tmp, []byte(u.Text()), 0o644); err != nil {
		return fmt.Errorf("write unit %s: %w", u.Name, err)
	}
	if err := os.Rename(tmp, u.Path()); err != nil {
		return fmt.Errorf("write unit %s: %w", u.Name, err)
	}
	step.Fault("unit written")
	if err := os.Symlink(u.Path(), u.wants()); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("enable unit %s: %w", u.Name, err)
	}
	return nil
}

// Written reports whether the unit is there and enabled, just so.
func (u AtBoot) Written() bool {
	text, err := os.ReadFile(u.Path())
	if err != nil || string(text) != u.Text() {
		return false
	}
	_, err = os.Lstat(u.wants())
	return err == nil
}

// Remove removes the unit, if it is there.
func (u AtBoot) Remove() error {
	for _, path := range []string{u.wants(), u.Path(), u.Path() + ".tmp"} { // the last, if its writer was killed
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove unit %s: %w", u.Name, err)
		}
		step.Fault("unit removed")
	}
	return nil
}
