// Package oci runs nodes by OCI runtimes: it turns a node into a runtime specification and drives the runtimes that Debian ships,
// runc and crun.
//
// [Config], which is pure, makes the specification. Three steps carry it out:
//
//	oci.bundle   writes config.json where the runtime reads it
//	oci.create   the runtime makes the namespaces and an init that waits ([Launch]); then links are moved in
//	oci.start    the init becomes the node's command, and the step verifies that it did
//
// [Create.Exec] runs one more command inside. [Family] chooses the runtime and names its known container escapes.
//
// # What a node may do
//
// A node has one of two capability lists ([CommandCapabilities], [InitCapabilities]); a seccomp filter that allows system
// calls known to be harmless and answers EPERM to the rest; no new privileges if it is a command node; a device cgroup
// that allows only the standard devices and those of its spec; masked and read-only paths; and its own session keyring
// (the runtimes' default).
//
// # User namespaces and containers inside a node
//
// They are refused: the seccomp filter answers EPERM to unshare(2), setns(2), mount(2) and to clone(2) with any
// namespace flag, and ENOSYS to clone3(2), whose flags a filter cannot see (C libraries then fall back to clone).
// The reason: most local root exploits of the kernel begin with namespaces that ordinary users make, and a virtual node
// needs none. Therefore rootless podman, bubblewrap, flatpak and browsers with a namespace sandbox do not work inside a
// node.
package oci

import (
	"context"
	"encoding/json"
	"fmt"

	"berth/internal/host"
	"berth/internal/runner"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/step"
)

// Family is the OCI runtimes of this host. It implements runner.Family.
type Family struct{}

// Kinds implements runner.Family.
func (Family) Kinds() step.Kinds {
	return step.Kinds{
		"oci.bundle": func() step.Step { return &Bundle{} },
		"oci.create": func() step.Step { return &Create{} },
		"oci.start":  func() step.Step { return &Start{} },
	}
}

// Remembered implements runner.Family.
func (Family) Remembered(t runner.Trial) runner.Runner {
	if c := chosen(t); c != nil {
		return c.Best
	}
	return nil
}

// Choose implements runner.Family.
func (Family) Choose(ctx context.Context, t runner.Trial) (runner.Runner, error) {
	c, err := choose(ctx, t)
	if err != nil {
		return nil, err
	}
	return c.Best, nil
}

// Report implements runner.Family.
func (Family) Report(ctx context.Context, t runner.Trial) []host.Runtime {
	results := map[string]result{}
	if c, err := choose(ctx, t); err == nil {
		for _, r := range c.Tried {
			results[r.Runtime.Name] = r
		}
	}
	found, _ := find(ctx) // on an error: none
	var all []host.Runtime
	for _, name := range runtimeNames() {
		hr := host.Runtime{Name: name}
		for _, r := range found {
			if r.Name != name {
				continue
			}
			hr.Path, hr.Version, hr.Escapes = r.Path, r.Version, escapes(r)
			hr.Start = results[name].Median
			if why := results[name].Why; why != "" {
				hr.Err = &runner.CommandError{Command: name, Why: why}
			}
		}
		all = append(all, hr)
	}
	return all
}

// Create implements runner.Family.
func (Family) Create(ctx context.Context, l *runner.Launch) error {
	var launch Launch
	if err := json.Unmarshal(l.Input, &launch); err != nil {
		return fmt.Errorf("read the launch of an OCI runtime: %s", jsonfile.Wrong(l.Input, err))
	}
	launch.Files = l.Files
	return launch.Create(ctx)
}
