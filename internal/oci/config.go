package oci

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/refuse"
)

// specVersion is the version of the runtime specification in the configuration. Debian 12's runc (1.0.2-dev) and crun
// (1.0.0) refuse newer ones or warn of them; Berth uses nothing newer.
const specVersion = "1.0.2"

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Config returns the runtime's configuration of a node. It is pure: the same input gives the same specification. The
// seccomp filter depends on the processor that Berth was built for.
func Config(in Input) (*specs.Spec, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	caps := CommandCapabilities()
	if in.Init != Command {
		caps = InitCapabilities()
	}
	process, err := in.process(caps)
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{
		Version:  specVersion,
		Root:     &specs.Root{Path: in.Rootfs, Readonly: in.ReadOnly},
		Hostname: in.Hostname,
		Process:  process,
		Mounts:   in.mounts(),
		Linux: &specs.Linux{
			CgroupsPath:   in.CgroupsPath,
			Namespaces:    in.namespaces(),
			Resources:     &specs.LinuxResources{Devices: in.deviceRules()},
			MaskedPaths:   append(in.maskedPaths(), in.Mask...),
			ReadonlyPaths: readonlyPaths(),
			Sysctl:        in.sysctls(),
		},
	}
	if in.IDSize > 0 {
		ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: in.IDBase, Size: in.IDSize}}
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = ids, ids
	}
	if spec.Linux.Seccomp, err = seccompFor(spec); err != nil {
		return nil, err
	}
	return spec, nil
}

// process returns process 1, which is also the template for commands of exec.
func (in *Input) process(caps []Capability) (*specs.Process, error) {
	limits, err := rlimits(in.RLimits)
	if err != nil {
		return nil, err
	}
	names := capabilityNames(caps)
	// Without a value the node would inherit the caller's, for example that of a service that the kernel must not kill.
	// In its user namespace the node cannot go below the caller's value: Start sets a lower one on process 1.
	oomScore := max(in.OOMScoreAdj, 1)
	return &specs.Process{
		Terminal: in.Terminal,
		Args:     in.Args,
		Env:      in.env(),
		Cwd:      orElse(in.Cwd, "/"),
		User:     specs.User{UID: in.User.UID, GID: in.User.GID, AdditionalGids: in.User.Additional},
		// Neither inheritable nor ambient: a program that drops to a user keeps nothing (CVE-2022-29162, CVE-2022-27650).
		Capabilities: &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names},
		Rlimits:      limits,
		// An init's users log in and use su and sudo; a command has no use for set-user-id programs.
		NoNewPrivileges: in.Init == Command,
		OOMScoreAdj:     &oomScore,
	}, nil
}

// env adds the variables that every program expects. "container" tells an init that it runs in a container (systemd's
// container interface); its value is free.
func (in *Input) env() []string {
	env := slices.Clone(in.Env)
	has := func(name string) bool {
		return slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	}
	if !has("PATH") {
		env = append(env, "PATH="+defaultPath)
	}
	if in.Terminal && !has("TERM") {
		env = append(env, "TERM=xterm")
	}
	if in.Init != Command && !has("container") {
		env = append(env, "container=berth")
	}
	return env
}

func (in *Input) namespaces() []specs.LinuxNamespace {
	all := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.NetworkNamespace},
		{Type: specs.CgroupNamespace},
	}
	if in.IDSize > 0 {
		all = append(all, specs.LinuxNamespace{Type: specs.UserNamespace})
	}
	return all
}

// sysctls lets every group of the node send echo requests through a datagram socket, so that ping needs no NET_RAW.
// A group id beyond the node's range is EINVAL; without a user namespace the limit is the kernel's (2^31-1).
func (in *Input) sysctls() map[string]string {
	last := uint32(1<<31 - 1)
	if in.IDSize > 0 {
		last = min(last, in.IDSize-1)
	}
	return map[string]string{"net.ipv4.ping_group_range": fmt.Sprintf("0 %d", last)}
}

// deviceRules denies all devices, then allows those of in.Devices. The runtimes themselves append the standard devices
// (null, zero, full, random, urandom, tty, ptmx and the terminals) to any list.
func (in *Input) deviceRules() []specs.LinuxDeviceCgroup {
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, d := range in.Devices {
		kind := "c"
		if d.Block {
			kind = "b"
		}
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: kind, Major: &d.Major, Minor: &d.Minor, Access: d.Access})
	}
	return rules
}

// rlimits translates the names of the spec, in a fixed order.
func rlimits(limits map[string]uint64) ([]specs.POSIXRlimit, error) {
	known := []string{
		"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc",
		"rss", "rtprio", "rttime", "sigpending", "stack",
	}
	var all []specs.POSIXRlimit
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if !slices.Contains(known, name) {
			return nil, refuse.Invalidf("rlimit %q: allowed are %s", name, strings.Join(known, ", "))
		}
		v := limits[name]
		all = append(all, specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(name), Soft: v, Hard: v})
	}
	return all, nil
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
