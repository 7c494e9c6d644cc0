// Package cgroup makes a node's control groups and sets its limits, on cgroup v1, v2 and hybrid hosts.
//
// A node has one group, at the same path (berth/NAME, or berth.CLASS/NAME) in every mounted hierarchy. Each limit is
// written to the hierarchy that has its controller, and read back.
package cgroup

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/host"
	"berth/internal/step"
)

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{
		"cgroup.enable":         func() step.Step { return &Enable{} },
		"cgroup.group":          func() step.Step { return &Group{} },
		"cgroup.limit":          func() step.Step { return &Limit{} },
		"cgroup.change":         func() step.Step { return &Change{} },
		"cgroup.rlimit":         func() step.Step { return &RLimit{} },
		"cgroup.class":          func() step.Step { return &Class{} },
		"cgroup.foreign":        func() step.Step { return &Foreign{} },
		"cgroup.adopt":          func() step.Step { return &Adopt{} },
		"cgroup.delegate":       func() step.Step { return &Delegate{} },
		"cgroup.devices":        func() step.Step { return &Devices{} },
		"cgroup.devices_change": func() step.Step { return &DevicesChange{} },
	}
}

// Hierarchy is one mounted tree of groups.
type Hierarchy struct {
	Mount       string   `json:"mount"`
	Controllers []string `json:"controllers"`  // on v1 its controllers, or "name=systemd"; on v2 those that Berth uses
	V2          bool     `json:"v2,omitempty"` //
	Inode       uint64   `json:"inode,omitempty"`
}

// has reports whether this is the v1 hierarchy of a controller.
func (h Hierarchy) has(controller string) bool {
	return !h.V2 && slices.Contains(h.Controllers, controller)
}

// title names the hierarchy in a plan: "cpu,cpuacct", "v2".
func (h Hierarchy) title() string {
	if h.V2 {
		return "v2"
	}
	return strings.Join(h.Controllers, ",")
}

// used returns the v2 controllers that a node's group needs: for its limits, for limits set later, and for Stats.
func used() []string { return []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"} }

// hierarchies lists the mounted hierarchies, the v2 tree last. v1 controllers that are mounted together are one hierarchy.
func hierarchies(h host.Cgroups) []Hierarchy {
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
