// Package devgroup says which devices the processes of a group may open: by the device controller of cgroup v1, or a BPF
// program on v2.
package devgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/proof"
	"berth/internal/sys/step"
)

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{
		"cgroup.devices":        func() step.Step { return &Devices{} },
		"cgroup.devices_change": func() step.Step { return &Change{} },
	}
}

// Devices is a step that denies a group all devices but the standard ones and those listed: by the device controller on v1, by a
// BPF program on v2, which replaces the runtime's. Both vanish with the group. The step must come before the node's command
// starts, and on v1 before the node has groups of its own: the kernel refuses to restrict a group that has children.
type Devices struct {
	Dir   string   `json:"dir"`
	V2    bool     `json:"v2,omitempty"`
	Allow []string `json:"allow,omitempty"` // "b 8:16 rw", as the kernel writes it
}

// Of returns the step for a node's group; nil on a host without cgroups.
func Of(h host.Cgroups, path string) *Devices {
	switch {
	case h.Has("devices") == "v1":
		return &Devices{Dir: filepath.Join(h.V1["devices"], path)}
	case h.V2 != "":
		return &Devices{Dir: group.V2Dir(h, group.Container(h, path)), V2: true}
	}
	return nil
}

// By returns the mechanism that enforces the list, as berth show prints it.
func (d *Devices) By() string {
	if d.V2 {
		return "device program"
	}
	return "devices.allow"
}

// standardDevices returns the rules for what every node has: null, zero, full, random, urandom, tty, console, ptmx and
// the terminals. They lack the letter m: a node makes no device nodes.
func standardDevices() []string {
	return []string{
		"c 1:3 rw", "c 1:5 rw", "c 1:7 rw", "c 1:8 rw", "c 1:9 rw", "c 5:0 rw", "c 5:1 rw", "c 5:2 rw", "c 136:* rw",
	}
}

// Kind is "cgroup.devices".
func (d *Devices) Kind() string { return "cgroup.devices" }

// String is "closed but for the standard devices and b 8:16 rw".
func (d *Devices) String() string {
	if len(d.Allow) == 0 {
		return "closed but for the standard devices"
	}
	return "closed but for the standard devices and " + strings.Join(d.Allow, ", ")
}

// Do replaces the group's list by this one.
func (d *Devices) Do(context.Context) error {
	rules, err := deviceRules(d.Allow)
	if err != nil {
		return err
	}
	if d.V2 {
		return attachProgram(d.Dir, rules)
	}
	return writeDevices(d.Dir, rules)
}

// Verify checks that the group allows the listed devices and no others.
func (d *Devices) Verify(context.Context) error { return d.Holds() }

// Holds returns an error if the group does not allow exactly the listed devices.
func (d *Devices) Holds() error {
	rules, err := deviceRules(d.Allow)
	if err != nil {
		return err
	}
	if d.V2 {
		return checkProgram(d.Dir, rules)
	}
	got, err := readDevices(d.Dir)
	if err != nil {
		return err
	}
	if !slices.Equal(got, rules) {
		return fmt.Errorf("the devices of the node are %s, not %s", ruleTexts(got), ruleTexts(rules))
	}
	return nil
}

// Undo does nothing: the rules vanish with the group.
func (d *Devices) Undo(context.Context) error { return nil }

// Change is a step that gives a running node's group another device list.
type Change struct {
	Devices
	Old []string `json:"old,omitempty"` // the list that Undo restores
}

// Kind is "cgroup.devices_change".
func (d *Change) Kind() string { return "cgroup.devices_change" }

// String is "allow b 8:16 rw; deny b 8:32 rw".
func (d *Change) String() string {
	var parts []string
	for _, one := range []struct {
		word     string
		is, isnt []string
	}{{"allow ", d.Allow, d.Old}, {"deny ", d.Old, d.Allow}} {
		more := slices.DeleteFunc(slices.Clone(one.is), func(r string) bool { return slices.Contains(one.isnt, r) })
		if len(more) > 0 {
			parts = append(parts, one.word+strings.Join(more, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// Proved implements proof.Prover.
func (d *Change) Proved() []proof.Limit {
	var all []proof.Limit
	for _, one := range []struct {
		key      string
		is, isnt []string
	}{{vnode.AddDevice, d.Allow, d.Old}, {vnode.TakeDevice, d.Old, d.Allow}} {
		for _, rule := range one.is {
			if !slices.Contains(one.isnt, rule) {
				l := proof.Limit{Key: one.key, Asked: rule, ReadBack: rule, By: d.By(), Holds: true}
				if one.key == vnode.TakeDevice {
					l.ReadBack = "none"
				}
				all = append(all, l)
			}
		}
	}
	return all
}

// Do sets the new list.
func (d *Change) Do(ctx context.Context) error {
	err := d.Devices.Do(ctx)
	fault.Point("devices changed")
	return err
}

// Undo restores the old list. A group that no longer exists is no error.
func (d *Change) Undo(ctx context.Context) error {
	if _, err := os.Stat(d.Dir); os.IsNotExist(err) {
		return nil
	}
	old := d.Devices
	old.Allow = d.Old
	if err := old.Do(ctx); err != nil {
		return fmt.Errorf("give the node its old devices back: %w", err)
	}
	return old.Verify(ctx)
}
