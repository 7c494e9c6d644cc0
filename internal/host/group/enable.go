package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// Enable is a step that makes the v2 groups above the nodes' parent enable controllers for their children. Its Undo
// leaves them enabled: groups beside the nodes may rely on them by then, and disabling a controller would silently drop
// their limits.
type Enable struct {
	Mount       string   `json:"mount"`
	Groups      []string `json:"groups"` // relative to Mount, the root ("") first
	Controllers []string `json:"controllers"`
}

// EnableStep returns the step that a group at groupPath needs; nil if it needs none.
func EnableStep(h host.Cgroups, groupPath string) *Enable {
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

// Disabled returns the step that has the groups above a node's, and the node's own where it has groups inside, hand on again what another
// program has switched off; nil if they hand on all. has is what the node's group gets, or its container's.
func Disabled(h host.Cgroups, groupPath string) (e *Enable, has string, err error) {
	need := usedOf(h)
	if h.V2 == "" || len(need) == 0 {
		return nil, "", nil
	}
	groups := append(above(groupPath), path.Dir(groupPath))
	if split(h) {
		groups = append(groups, groupPath)
	}
	for _, g := range groups {
		now, err := HandedOn(filepath.Join(h.V2, g))
		if Gone(err) {
			return nil, "", nil // see Return
		}
		if err != nil {
			return nil, "", err
		}
		if e == nil && slices.ContainsFunc(need, func(c string) bool { return !slices.Contains(now, c) }) {
			e, has = &Enable{Mount: h.V2, Groups: groups, Controllers: need}, strings.Join(now, " ")
		}
	}
	return e, has, nil
}

// DisabledAbove returns the step that has the groups above a group, whoever made it, hand these controllers on again; nil if they do, and for
// a group that is not there. off names the controllers that some of them does not hand on, and at the highest such group, relative to the mount.
func DisabledAbove(h host.Cgroups, groupPath string, controllers []string) (e *Enable, off []string, at string, err error) {
	if h.V2 == "" {
		return nil, nil, "", nil
	}
	if _, _, there, err := Inode(filepath.Join(h.V2, groupPath)); err != nil || !there {
		return nil, nil, "", err
	}
	groups := above(groupPath)
	if parent := path.Dir(groupPath); parent != "." {
		groups = append(groups, parent)
	}
	for _, g := range groups {
		now, err := HandedOn(filepath.Join(h.V2, g))
		if Gone(err) { // with the group in it
			return nil, nil, "", nil
		}
		if err != nil {
			return nil, nil, "", err
		}
		for _, c := range controllers {
			if slices.Contains(now, c) || slices.Contains(off, c) {
				continue
			}
			if off = append(off, c); len(off) == 1 {
				at = g
			}
		}
	}
	if len(off) > 0 {
		e = &Enable{Mount: h.V2, Groups: groups, Controllers: off}
	}
	return e, off, at, nil
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
		now, err := HandedOn(filepath.Join(e.Mount, g))
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

// HandedOn returns the controllers that a v2 group enables for its children.
func HandedOn(dir string) ([]string, error) {
	text, err := ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	return strings.Fields(text), err
}

// handOn makes a v2 group enable controllers for its children.
func handOn(dir string, controllers []string) error {
	now, err := HandedOn(dir)
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
	err = WriteFile(filepath.Join(dir, "cgroup.subtree_control"), strings.Join(on, " "))
	if errors.Is(err, unix.EBUSY) {
		return busy(dir, err)
	}
	return err
}

// busy is the refusal of a v2 group that has processes of its own, which the kernel lets no group have that hands controllers on.
func busy(dir string, err error) error {
	var inside []string
	text, _ := ReadFile(filepath.Join(dir, "cgroup.procs")) // what cannot be read is not named
	for word := range strings.FieldsSeq(text) {
		if pid, err := strconv.Atoi(word); err == nil && len(inside) < 10 {
			inside = append(inside, fmt.Sprintf("process %d %q", pid, proc.Name(pid)))
		}
	}
	remedy := "end them, or move each into another group (echo PID >GROUP/cgroup.procs), and repeat"
	own := filepath.Join(dir, containers)
	if _, topErr := os.Stat(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control")); topErr != nil { // this is the top
		remedy = "run berth where the cgroup tree is its own, for example outside a container"
	} else if _, err := os.Stat(own); err == nil {
		remedy = "if they are the node's: for p in $(cat " + dir + "/cgroup.procs); do echo $p >" + own + "/cgroup.procs; done; berth repair; end or move others"
	}
	return refuse.Cannotf(remedy, "the cgroup cannot hand controllers on while there is %s in %s itself: %w",
		cmp.Or(strings.Join(inside, ", "), "a process"), dir, err)
}

// handOnAll is handOn for those of the controllers that the group has itself. A missing controller fails the limits
// that need it, not the group.
func handOnAll(dir string, controllers []string) error {
	text, err := ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	has := strings.Fields(text)
	return handOn(dir, slices.DeleteFunc(slices.Clone(controllers), func(c string) bool { return !slices.Contains(has, c) }))
}
