package oci

import (
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// mounts lists the standard mounts, then the node's devices, then its own mounts. A mount of the node at the same
// place as a standard one (/dev/shm, /run) replaces it.
func (in *Input) mounts() []specs.Mount {
	all := standardMounts(in.Init, in.Cgroup)
	all = slices.DeleteFunc(all, func(m specs.Mount) bool {
		return slices.ContainsFunc(in.Mounts, func(own Mount) bool { return own.Target == m.Destination })
	})
	for _, d := range in.Devices {
		// A bind of a node made for this node works in every user namespace; linux.devices would be mknod or the host's node.
		all = append(all, specs.Mount{Destination: d.Target, Type: "bind", Source: d.Source, Options: []string{"bind", "nosuid", "noexec"}})
	}
	for _, m := range in.Mounts {
		all = append(all, specs.Mount{Destination: m.Target, Type: m.Type, Source: m.Source, Options: m.Options})
	}
	return all
}

// terminals is how many pseudo terminals a node may have at a time. The kernel has 4,096 for the whole host
// (kernel.pty.max), of which all but 1,024 can go to nodes.
const terminals = "256"

func standardMounts(init Init, cgroup Access) []specs.Mount {
	all := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		// It holds nodes and links only: 1 MiB, so that a mistyped /dev/nul fills up at once rather than the memory.
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=1m"}},
		// gid 5 is tty in every distribution.
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=" + terminals}},
		// No size: half of the memory, as on any machine (MPI jobs need it). What is written counts as the node's memory.
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
	if cgroup != NotAtAll {
		all = append(all, specs.Mount{
			Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"nosuid", "noexec", "nodev", "relatime", orElse(string(cgroup), string(ReadOnly))},
		})
	}
	if init != Command {
		// Inits expect them empty at boot, and cannot mount them for want of SYS_ADMIN.
		all = append(all,
			specs.Mount{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=755"}},
			specs.Mount{Destination: "/run/lock", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "mode=1777", "size=5m"}},
		)
	}
	return all
}

// maskedPaths reads as empty what tells of the host or can harm it, user namespace or not: the kernel's memory and
// keys, firmware, and counters precise enough to spy on other nodes (interrupts, power and heat). Without a user
// namespace, also what only the host's root may read: which pages of memory and kernel objects are in use, and where.
func (in *Input) maskedPaths() []string {
	masked := []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/devices/virtual/thermal", "/sys/firmware",
	}
	if in.IDSize == 0 {
		masked = append(
			masked, "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/pagetypeinfo", "/proc/slabinfo",
			"/proc/vmallocinfo", "/sys/kernel/slab",
		)
	}
	return masked
}

// readonlyPaths holds what root inside could write if there were no user namespace, and sysctls that belong to the
// whole host. /proc/sys/net is read-only with them: the network is set from outside. /proc/pressure may be read: who writes
// there has the kernel measure the host's load for it.
func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/pressure", "/proc/sys", "/proc/sysrq-trigger"}
}

// ThermalPaths lists the per-CPU heat counters below sys ("/sys" on a real host), for Input.Mask: they tell of the
// load that others make. Hosts without such counters (virtual machines) have none.
func ThermalPaths(sys string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(sys, "devices/system/cpu/cpu[0-9]*/thermal_throttle"))
	if err != nil {
		return nil, err
	}
	for i, p := range found {
		rel, err := filepath.Rel(sys, p)
		if err != nil {
			return nil, err
		}
		found[i] = filepath.Join("/sys", rel)
	}
	return found, nil
}
