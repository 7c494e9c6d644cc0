package oci

import (
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// mounts returns the standard mounts, then the node's devices, then its own mounts. A mount of the node with the same target
// as a standard one (/dev/shm, /run) replaces it.
func (in *Input) mounts() []specs.Mount {
	all := standardMounts(in.Init, in.Cgroup)
	all = slices.DeleteFunc(all, func(m specs.Mount) bool {
		return slices.ContainsFunc(in.Mounts, func(own Mount) bool { return own.Target == m.Destination })
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

func standardMounts(init Init, cgroup Access) []specs.Mount {
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
	if cgroup != NotAtAll {
		all = append(all, specs.Mount{
			Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"nosuid", "noexec", "nodev", "relatime", orElse(string(cgroup), string(ReadOnly))},
		})
	}
	if init != Command {
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

// readonlyPaths returns the paths that root inside could write without a user namespace, and the sysctls of the whole host.
// These include /proc/sys/net: the network is configured from outside. /proc/pressure may only be read, because a write
// there makes the kernel monitor the host's load.
func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/pressure", "/proc/sys", "/proc/sysrq-trigger"}
}

// ThermalPaths returns the per-CPU heat counters below sys ("/sys" on a real host), for Input.Mask: they reveal the load
// of others. Virtual machines usually have none.
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
