package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/refuse"
)

// Enable is a step that makes the v2 groups above the nodes' parent enable controllers for their children. Its Undo
// leaves them enabled: groups beside the nodes may rely on them by then, and disabling a controller would silently drop
// their limits. Was records what was enabled before.
type Enable struct {
	Mount       string              `json:"mount"`
	Groups      []string            `json:"groups"` // relative to Mount, the root ("") first
	Controllers []string            `json:"controllers"`
	Was         map[string][]string `json:"was,omitempty"` // group to the controllers that it had enabled before
}

// enable returns the step that a group at groupPath needs; nil if it needs none.
func enable(h host.Cgroups, groupPath string) *Enable {
	need := usedOf(h)
	if h.V2 == "" || len(need) == 0 {
		return nil
	}
	groups := above(groupPath)
	missing := slices.DeleteFunc(need, func(c string) bool { return slices.Contains(h.V2Enabled, c) })
	if len(missing) == 0 && len(groups) == 1 {
		return nil
	}
	if len(groups) > 1 { // h.V2Enabled is of the root only
		missing = usedOf(h)
	}
	return &Enable{Mount: h.V2, Groups: groups, Controllers: missing}
}

// above lists the groups above the parent of a node's group, the root ("") first. These exist already.
func above(groupPath string) []string {
	groups := []string{""}
	for i, c := range path.Dir(groupPath) {
		if c == '/' {
			groups = append(groups, groupPath[:i])
		}
	}
	return groups
}

// Kind is "cgroup.enable".
func (e *Enable) Kind() string { return "cgroup.enable" }

// String is "cpu io memory for the groups in /sys/fs/cgroup (stays on)".
func (e *Enable) String() string {
	dirs := make([]string, len(e.Groups))
	for i, g := range e.Groups {
		dirs[i] = filepath.Join(e.Mount, g)
	}
	return strings.Join(e.Controllers, " ") + " for the groups in " + strings.Join(dirs, ", ") + " (stays on)"
}

// Prepare records which controllers are enabled.
func (e *Enable) Prepare(context.Context) error {
	e.Was = map[string][]string{}
	for _, g := range e.Groups {
		now, err := handedOn(filepath.Join(e.Mount, g))
		if err != nil {
			return err
		}
		e.Was[g] = now
	}
	return nil
}

// Do enables the controllers that are not enabled yet.
func (e *Enable) Do(context.Context) error {
	for _, g := range e.Groups {
		if err := handOn(filepath.Join(e.Mount, g), e.Controllers); err != nil {
			return err
		}
	}
	return nil
}

// Verify checks that all controllers are enabled.
func (e *Enable) Verify(context.Context) error {
	for _, g := range e.Groups {
		now, err := handedOn(filepath.Join(e.Mount, g))
		if err != nil {
			return err
		}
		for _, c := range e.Controllers {
			if !slices.Contains(now, c) {
				return fmt.Errorf("enable %s in %s: the kernel hands on %q", c, filepath.Join(e.Mount, g), now)
			}
		}
	}
	return nil
}

// Undo leaves the controllers enabled.
func (e *Enable) Undo(context.Context) error { return nil }

// handedOn returns the controllers that a v2 group enables for its children.
func handedOn(dir string) ([]string, error) {
	text, err := readFile(filepath.Join(dir, "cgroup.subtree_control"))
	return strings.Fields(text), err
}

// handOn makes a v2 group enable controllers for its children.
func handOn(dir string, controllers []string) error {
	now, err := handedOn(dir)
	if err != nil {
		return err
	}
	var on []string
	for _, c := range controllers {
		if !slices.Contains(now, c) {
			on = append(on, "+"+c)
		}
	}
	if len(on) == 0 {
		return nil
	}
	err = writeFile(filepath.Join(dir, "cgroup.subtree_control"), strings.Join(on, " "))
	if errors.Is(err, unix.EBUSY) {
		return refuse.Cannotf("run berth where the cgroup tree is its own, for example outside a container",
			"processes sit in %s itself, so it cannot hand controllers on: %w", dir, err)
	}
	return err
}

// handOnAll is handOn for those of the controllers that the group has itself. A missing controller fails the limits
// that need it, not the group.
func handOnAll(dir string, controllers []string) error {
	text, err := readFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	has := strings.Fields(text)
	return handOn(dir, slices.DeleteFunc(slices.Clone(controllers), func(c string) bool { return !slices.Contains(has, c) }))
}

// Delegate is a step that lets a node's root manage groups of its own inside the node's v2 group. The limits stay the
// host's: their files keep their owner. On v1 nothing is delegated, because that is not safe with its controllers.
type Delegate struct {
	Dir string `json:"dir"`
	UID uint32 `json:"uid"` // the node's root, as the host sees it
	GID uint32 `json:"gid"`
}

// DelegateStep returns the step for a node with an init system, whose root has these ids on the host; nil on a host
// without a v2 tree.
func DelegateStep(h host.Cgroups, path string, uid, gid uint32) *Delegate {
	if h.V2 == "" {
		return nil
	}
	return &Delegate{Dir: V2Dir(h, path), UID: uid, GID: gid}
}

// delegated returns the files of /sys/kernel/cgroup/delegate that only arrange processes; "" is the folder itself.
func delegated() []string {
	return []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"}
}

// Kind is "cgroup.delegate".
func (d *Delegate) Kind() string { return "cgroup.delegate" }

// String is "/sys/fs/cgroup/berth/wn-001 to 100000:100000".
func (d *Delegate) String() string { return fmt.Sprintf("%s to %d:%d", d.Dir, d.UID, d.GID) }

// Do gives the files to the node's root.
func (d *Delegate) Do(context.Context) error {
	for _, name := range delegated() {
		if err := os.Chown(filepath.Join(d.Dir, name), int(d.UID), int(d.GID)); err != nil {
			return fmt.Errorf("delegate: %w", err)
		}
	}
	return nil
}

// Verify checks the files' owner.
func (d *Delegate) Verify(context.Context) error {
	for _, name := range delegated() {
		var st unix.Stat_t
		file := filepath.Join(d.Dir, name)
		if err := unix.Stat(file, &st); err != nil {
			return fmt.Errorf("look at %s: %w", file, err)
		}
		if st.Uid != d.UID || st.Gid != d.GID {
			return fmt.Errorf("delegate %s: it belongs to %d:%d", file, st.Uid, st.Gid)
		}
	}
	return nil
}

// Undo does nothing: the files vanish with their group.
func (d *Delegate) Undo(context.Context) error { return nil }
