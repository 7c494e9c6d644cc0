package cgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/host"
)

// Devices is a step that closes a group's v1 device cgroup but for the standard devices and those listed. It goes with
// the group. It must come before the node's command starts, and before the node has groups of its own (the kernel
// refuses to close a group that has any).
type Devices struct {
	Dir   string   `json:"dir"`
	Allow []string `json:"allow,omitempty"` // "b 8:16 rw", as the kernel writes it
}

// DevicesStep returns the step for a host whose device controller is on v1, nil elsewhere: on v2 it is a program that
// the runtime attaches.
func DevicesStep(h host.Cgroups, path string) *Devices {
	if h.Has("devices") != "v1" {
		return nil
	}
	return &Devices{Dir: filepath.Join(h.V1["devices"], path)}
}

// standardDevices are what every node has: null, zero, full, random, urandom, tty, console, ptmx and the terminals. No
// letter m: a node makes no device nodes.
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

func (d *Devices) allowed() []string { return slices.Concat(standardDevices(), d.Allow) }

// Do denies all and then allows what is listed.
func (d *Devices) Do(context.Context) error {
	if err := d.write("devices.deny", "a"); err != nil {
		return err
	}
	for _, rule := range d.allowed() {
		if err := d.write("devices.allow", rule); err != nil {
			return err
		}
	}
	return nil
}

func (d *Devices) write(name, rule string) error {
	if err := os.WriteFile(filepath.Join(d.Dir, name), []byte(rule), 0); err != nil {
		return fmt.Errorf("close the devices of the node: write %q: %w", rule, err)
	}
	return nil
}

// Verify reads the list back: nothing but what was allowed.
func (d *Devices) Verify(context.Context) error {
	text, err := os.ReadFile(filepath.Join(d.Dir, "devices.list"))
	if err != nil {
		return fmt.Errorf("read back the devices of the node: %w", err)
	}
	got := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(got)
	want := slices.Sorted(slices.Values(d.allowed()))
	if !slices.Equal(slices.Compact(got), slices.Compact(want)) {
		return fmt.Errorf("the devices of the node are %s, not %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
	return nil
}

// Undo has nothing to do: the rules go with the group.
func (d *Devices) Undo(context.Context) error { return nil }
