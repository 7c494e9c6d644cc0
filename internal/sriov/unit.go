package sriov

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/step"
)

// Unit is the systemd unit that makes virtual functions again at boot, before the network is set up.
type Unit struct {
	Dir  string // /etc/systemd/system
	Name string // berth-vfs.service
}

// Path is the unit's file.
func (u Unit) Path() string { return filepath.Join(u.Dir, u.Name) }

// wants is the symbolic link by which the unit is enabled.
func (u Unit) wants() string { return filepath.Join(u.Dir, "multi-user.target.wants", u.Name) }

// Text is the unit. args is the command that fulfils the wishes.
func (u Unit) Text(args []string) string {
	return `# Written by berth vf enable; berth vf disable removes it with the last adapter.
[Unit]
Description=Virtual functions of network adapters, as berth vf enable made them
After=systemd-udevd.service
Wants=network-pre.target
Before=network-pre.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=` + quoteUnit(args) + `

[Install]
WantedBy=multi-user.target
`
}

// quoteUnit writes a command line as systemd.service(5) reads it.
func quoteUnit(args []string) string {
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
func (u Unit) Write(args []string) error {
	if err := os.MkdirAll(filepath.Dir(u.wants()), 0o755); err != nil {
		return fmt.Errorf("write unit %s: %w", u.Name, err)
	}
	tmp := u.Path() + ".tmp"
	if err := os.WriteFile(tmp, []byte(u.Text(args)), 0o644); err != nil {
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

// Remove removes the unit, if it is there.
func (u Unit) Remove() error {
	for _, path := range []string{u.wants(), u.Path()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove unit %s: %w", u.Name, err)
		}
		step.Fault("unit removed")
	}
	return nil
}
