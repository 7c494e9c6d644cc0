package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/fork"
)

// UnitDir is where an administrator's units are (systemd.unit(5)).
const UnitDir = "/etc/systemd/system"

// AtBoot is a unit that runs a command once at each boot.
type AtBoot struct {
	Dir   string // UnitDir
	Name  string // berth-vfs.service
	By    string // what writes and removes it: "berth vf enable; berth vf disable removes it with the last adapter"
	About string // its description
	Order string // the lines of [Unit] that order it before and after other units
	Args  []string
}

// Path is the unit's file.
func (u AtBoot) Path() string { return filepath.Join(u.Dir, u.Name) }

// wants returns the path of the symbolic link that enables the unit.
func (u AtBoot) wants() string { return filepath.Join(u.Dir, "multi-user.target.wants", u.Name) }

// Text returns the content of the unit's file.
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

// quoted formats a command line for systemd.service(5).
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

// Write writes and enables the unit, and returns when the disk has it. systemd reads it at the next boot.
func (u AtBoot) Write() error {
	if err := os.MkdirAll(filepath.Dir(u.wants()), 0o755); err != nil {
		return fmt.Errorf("write unit %s: %w", u.Name, err)
	}
	if err := file.Write(u.Path(), []byte(u.Text()), 0o644); err != nil {
		return fmt.Errorf("write unit %s: %w", u.Name, err)
	}
	if err := os.Symlink(u.Path(), u.wants()); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("enable unit %s: %w", u.Name, err)
	}
	return file.SyncDir(filepath.Dir(u.wants()))
}

// Written reports whether the unit is enabled and its file has exactly this text.
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
	for _, path := range []string{u.wants(), u.Path(), u.Path() + ".tmp"} { // the .tmp file is left if its writer was killed
		if err := file.Remove(path); err != nil {
			return fmt.Errorf("remove unit %s: %w", u.Name, err)
		}
		fault.Point("unit removed")
	}
	return nil
}

// Program returns the file of berth, as a unit calls it.
func Program() (self string, err error) {
	if self = fork.Berth(); self == "/proc/self/exe" {
		self, err = os.Executable() // also where a newer program took the file's place
	}
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", fmt.Errorf("find this program's file: %w", err)
	}
	return self, nil
}
