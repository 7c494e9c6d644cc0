package oci

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/runner"
	"berth/internal/storage/mounts"
	"berth/internal/sys/refuse"
)

// specVersion is the version of the runtime specification in the configuration. Debian 12's runc (1.0.2-dev) and crun
// (1.0.0) refuse newer ones or warn of them; Berth uses nothing newer.
const specVersion = "1.0.2"

// input is a node as Config reads it.
type input runner.Spec

// Config returns the runtime's configuration of a node. It is pure: the same input gives the same specification. The
// seccomp filter depends on the processor that Berth was built for.
func Config(s runner.Spec) (*specs.Spec, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	in := (*input)(&s)
	caps := CommandCapabilities()
	if in.Init != runner.NoInit {
		caps = InitCapabilities()
	}
	process, err := in.firstProcess(caps)
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{
		Version:  specVersion,
		Root:     &specs.Root{Path: in.Content.Root.At, Readonly: in.ReadOnly},
		Hostname: in.Hostname,
		Process:  process,
		Mounts:   in.mounts(),
		Linux: &specs.Linux{
			CgroupsPath:   cgroupsPath(s.Groups),
			Namespaces:    in.namespaces(),
			Resources:     &specs.LinuxResources{Devices: in.deviceRules()},
			MaskedPaths:   append(in.maskedPaths(), in.Mask...),
			ReadonlyPaths: readonlyPaths(),
			Sysctl:        in.sysctls(),
		},
	}
	if in.Content.IDs.Size > 0 {
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = idMappings(in.Content.IDs.Users()), idMappings(in.Content.IDs.Groups())
	}
	if spec.Linux.Seccomp, err = seccompFor(spec); err != nil {
		return nil, err
	}
	return spec, nil
}

func idMappings(lines []mounts.IDLine) []specs.LinuxIDMapping {
	var all []specs.LinuxIDMapping
	for _, l := range lines {
		all = append(all, specs.LinuxIDMapping{ContainerID: l.Inside, HostID: l.Host, Size: l.Count})
	}
	return all
}

// cgroupsPath returns the path of the groups in every hierarchy, as the runtimes read it.
func cgroupsPath(g runner.Groups) string { return "/" + g.Path }

// firstProcess returns process 1, which is also the template for commands of exec.
func (in *input) firstProcess(caps []Capability) (*specs.Process, error) {
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
		Env:      in.environment(),
		Cwd:      cmp.Or(in.Cwd, "/"),
		User:     specs.User{UID: in.User.UID, GID: in.User.GID, AdditionalGids: in.User.Additional},
		// Neither inheritable nor ambient: a program that drops to a user keeps nothing (CVE-2022-29162, CVE-2022-27650).
		Capabilities: &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names},
		Rlimits:      limits,
		// An init's users log in and use su and sudo; a command has no use for set-user-id programs, unless its spec says so.
		NoNewPrivileges: in.KeepPrivs || in.Init == runner.NoInit && !in.NewPrivs,
		OOMScoreAdj:     &oomScore,
	}, nil
}

// environment adds the variables that every program expects. "container" tells an init that it runs in a container (systemd's
// container interface); its value is free.
func (in *input) environment() []string {
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
	if in.Init != runner.NoInit && !has("container") {
		env = append(env, "container=berth")
	}
	return env
}

func (in *input) namespaces() []specs.LinuxNamespace {
	all := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.NetworkNamespace},
		{Type: specs.CgroupNamespace},
	}
	if in.Content.IDs.Size > 0 {
		all = append(all, specs.LinuxNamespace{Type: specs.UserNamespace})
	}
	return all
}

// sysctls lets every group of the node send echo requests through a datagram socket, so that ping needs no NET_RAW.
// A group id beyond the node's range is EINVAL; without a user namespace the limit is the kernel's (2^31-1).
func (in *input) sysctls() map[string]string {
	last := uint32(1<<31 - 1)
	if in.Content.IDs.Size > 0 {
		last = min(last, in.Content.IDs.Size-1)
	}
	return map[string]string{"net.ipv4.ping_group_range": fmt.Sprintf("0 %d", last)}
}

// deviceRules denies all devices, then allows those of in.Devices. The runtimes themselves append the standard devices
// (null, zero, full, random, urandom, tty, ptmx and the terminals) to any list.
func (in *input) deviceRules() []specs.LinuxDeviceCgroup {
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

// mounts returns the standard mounts, then the node's devices, then its own mounts. A mount of the node with the same target
// as a standard one (/dev/shm, /run) replaces it.
func (in *input) mounts() []specs.Mount {
	all := standardMounts(in.Init, in.Cgroup)
	all = slices.DeleteFunc(all, func(m specs.Mount) bool {
		return slices.ContainsFunc(in.Mounts, func(own runner.Mount) bool { return own.Target == m.Destination })
	})
	for _, d := range in.Devices {
		// Binding a device node that was made for this node works in every user namespace. linux.devices would use mknod or
		// bind the host's device node.
		all = append(all, specs.Mount{Destination: d.Target, Type: "bind", Source: d.Source, Options: []string{"bind", "nosuid", "noexec"}})
	}
	for _, m := range in.Mounts {
		all = append(all, specs.Mount{Destination: m.Target, Type: m.Type, Source: m.Source, Options: m.Options})
	}
	return all
}

// terminals is the largest number of pseudo terminals of a node at a time. The kernel has 4,096 for the whole host
// (kernel.pty.max), of which nodes can use all but 1,024.
const terminals = "256"

func standardMounts(init runner.Init, cgroup runner.Access) []specs.Mount {
	all := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		// It holds only device nodes and links. With 1 MiB, a mistyped /dev/nul fills it at once instead of the memory.
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=1m"}},
		// gid 5 is tty in every distribution.
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=" + terminals}},
		// No size: half of the memory, as on any machine (MPI jobs need it). Its content counts as the node's memory.
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
	if cgroup != runner.NotAtAll {
		all = append(all, specs.Mount{
			Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"nosuid", "noexec", "nodev", "relatime", cmp.Or(string(cgroup), string(runner.ReadOnly))},
		})
	}
	if init != runner.NoInit {
		// Inits expect them empty at boot, and cannot mount them without SYS_ADMIN.
		all = append(all,
			specs.Mount{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=755"}},
			specs.Mount{Destination: "/run/lock", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "mode=1777", "size=5m"}},
		)
	}
	return all
}

// maskedPaths returns the paths that read as empty, because they reveal data of the host or can harm it: the kernel's memory
// and keys, firmware, and counters precise enough to spy on other nodes (interrupts, power and heat). Without a user
// namespace it adds the files that only the host's root may read: which pages of memory and kernel objects are in use,
// and where.
func (in *input) maskedPaths() []string {
	masked := []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/devices/virtual/thermal", "/sys/firmware",
	}
	if in.Content.IDs.Size == 0 {
		masked = append(
			masked, "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/pagetypeinfo", "/proc/slabinfo",
			"/proc/vmallocinfo", "/sys/kernel/slab",
		)
	}
	return masked
}

// readonlyPaths returns the paths that root inside could write without a user namespace, and the sysctls of the whole host.
// These include /proc/sys/net: the network is configured from outside. /proc/pressure may only be read, because a write
// there makes the kernel monitor the host's load.
func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/pressure", "/proc/sys", "/proc/sysrq-trigger"}
}
