// Package systemd changes properties of units through their manager (systemctl set-property), so that they hold while the
// unit runs and when it is started again, and restores the old ones.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{"systemd.set": func() step.Step { return &Set{} }}
}

// Running reports whether systemd manages this host (sd_booted(3)).
func Running() bool {
	fi, err := os.Lstat("/run/systemd/system")
	return err == nil && fi.IsDir()
}

// Unit is what the manager knows of a unit.
type Unit struct {
	Name         string // its own name, not an alias
	ControlGroup string // "" while it does not run
	Slice        string
	MainPID      string // "0": none
	Transient    bool   // a program asked systemd for it, as systemd-run does: no file says that there is one
	Properties   map[string]string
}

// patience is how long one call of systemctl may take.
const patience = 30 * time.Second

// Look asks the manager for a unit and some of its properties. The error is refuse.NotFound if there is no such unit.
func Look(ctx context.Context, name string, properties ...string) (Unit, error) {
	text, err := systemctl(ctx, "show", "--property=Id,LoadState,ControlGroup,Slice,MainPID,Transient,"+strings.Join(properties, ","), "--", name)
	if err != nil {
		return Unit{}, err
	}
	u := Unit{Properties: map[string]string{}}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		u.Properties[key] = strings.TrimSpace(u.Properties[key] + "\n" + value) // a list has a line for each entry
	}
	u.Name, u.ControlGroup = u.Properties["Id"], u.Properties["ControlGroup"]
	u.Slice, u.MainPID = u.Properties["Slice"], u.Properties["MainPID"]
	u.Transient = u.Properties["Transient"] == "yes"
	if state := u.Properties["LoadState"]; state != "loaded" {
		return u, refuse.NotFoundf("no unit %s (systemd says: %s); systemctl list-units lists them", name, state)
	}
	return u, nil
}

func systemctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0")
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := fork.Run(cmd); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "", refuse.Cannotf("install systemd's systemctl", "ask systemd: %w", err)
		}
		return "", fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return out.String(), nil
}

// ControlDir is where the manager stores properties that were set over D-Bus for good (systemd.unit(5)).
const ControlDir = "/etc/systemd/system.control"

// TransientDir is ControlDir of a unit that is transient (systemd's src/core/unit.c: unit_drop_in_dir).
const TransientDir = "/run/systemd/transient"

// DropIn returns the path of the manager's file for such a property, below dir, which is ControlDir or TransientDir.
func DropIn(dir, unit, property string) string {
	return filepath.Join(dir, unit+".d", "50-"+property+".conf")
}

// read returns a file's text, nil if it is not there.
func read(path string) (*string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read drop-in: %w", err)
	}
	text := string(b)
	return &text, nil
}
