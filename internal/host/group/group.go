// Package group makes, fills, empties and removes groups of processes (cgroups), at the same path in every hierarchy that
// the host has mounted, and writes and reads their control files.
package group

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/host"
	"berth/internal/sys/step"
)

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{
		"cgroup.enable":   func() step.Step { return &Enable{} },
		"cgroup.group":    func() step.Step { return &Group{} },
		"cgroup.delegate": func() step.Step { return &Delegate{} },
	}
}

// Hierarchy is one mounted tree of groups.
type Hierarchy struct {
	Mount       string   `json:"mount"`
	Controllers []string `json:"controllers"`  // on v1 its controllers, or "name=systemd"; on v2 those that Berth uses
	V2          bool     `json:"v2,omitempty"` //
	Inode       uint64   `json:"inode,omitempty"`
}

// Has reports whether this is the v1 hierarchy of a controller.
func (h Hierarchy) Has(controller string) bool {
	return !h.V2 && slices.Contains(h.Controllers, controller)
}

// Title names the hierarchy in a plan: "cpu,cpuacct", "v2".
func (h Hierarchy) Title() string {
	if h.V2 {
		return "v2"
	}
	return strings.Join(h.Controllers, ",")
}

// used returns the v2 controllers that a node's group needs: for its limits, for limits set later, and for Stats.
func used() []string { return []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"} }

// Hierarchies lists the mounted hierarchies, the v2 tree last. v1 controllers that are mounted together are one hierarchy.
func Hierarchies(h host.Cgroups) []Hierarchy {
	var all []Hierarchy
	for _, controller := range slices.Sorted(maps.Keys(h.V1)) {
		mount := h.V1[controller]
		if i := slices.IndexFunc(all, func(o Hierarchy) bool { return o.Mount == mount }); i >= 0 {
			all[i].Controllers = append(all[i].Controllers, controller)
			continue
		}
		all = append(all, Hierarchy{Mount: mount, Controllers: []string{controller}})
	}
	if h.V2 != "" {
		all = append(all, Hierarchy{Mount: h.V2, Controllers: usedOf(h), V2: true})
	}
	return all
}

// usedOf returns the controllers of the v2 tree that Berth uses.
func usedOf(h host.Cgroups) []string {
	return slices.DeleteFunc(used(), func(c string) bool { return !slices.Contains(h.V2Controllers, c) })
}

// V2Dir returns the group's folder in the v2 tree, "" on a host without one.
func V2Dir(h host.Cgroups, path string) string {
	if h.V2 == "" {
		return ""
	}
	return filepath.Join(h.V2, path)
}

// V1Name returns the v1 name of a controller.
func V1Name(controller string) string {
	if controller == "io" {
		return "blkio"
	}
	return controller
}

// File returns a function that returns the path of a control file of a group, in the hierarchy that has a controller,
// and reports whether that hierarchy is of cgroup v1. controller is its v2 name.
func File(h host.Cgroups, path, controller string) (file func(name string) string, v1 bool) {
	mount, v1 := h.V2, h.Has(V1Name(controller)) == "v1"
	if v1 {
		mount = h.V1[V1Name(controller)]
	}
	return func(name string) string { return filepath.Join(mount, path, name) }, v1
}
